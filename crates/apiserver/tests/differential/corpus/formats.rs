//! Response formats: tables, partial metadata, content negotiation.

use serde_json::json;

use super::subjects::Subject;
use crate::script::{ScriptStep, delete, get, post};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<ScriptStep> {
    let all = subject.collection(namespace);
    let one = format!("{all}/{namespace}-f");
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    const META: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    const METAS: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let mut object = subject.named(&format!("{namespace}-f"));
    object["metadata"]["labels"] = json!({"of": namespace});
    let mut generated = object.clone();
    generated["metadata"] = json!({"generateName": "generated-", "labels": {"of": format!("{namespace}-g")}});
    let mut long = generated.clone();
    long["metadata"]["generateName"] = format!("{}-", "x".repeat(70)).into();
    let mine = format!("labelSelector=of%3D{namespace}");
    vec![
        post(&all, &object).accept(META).titled("create as metadata"),
        get(&one).accept(META).titled("get as metadata"),
        get(format!("{all}?{mine}")).accept(METAS).titled("list as metadata"),
        get(format!("{all}?{mine}&includeObject=None"))
            .accept(TABLE)
            .titled("list as a table without objects"),
        get(format!("{all}?{mine}&includeObject=Bogus"))
            .accept(TABLE)
            .titled("a table with an invalid option"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}")).accept(META).titled("watch as metadata"),
        get(&one).accept("application/json;as=Bogus;v=v1;g=meta.k8s.io").titled("as something else"),
        get(&one).accept("image/png").titled("as an image"),
        get(&one).accept("*/*").titled("as anything"),
        get(&one)
            .accept("application/vnd.kubernetes.protobuf;q=0.1,application/json")
            .titled("as JSON second"),
        get(&one).accept("").titled("without an Accept header"),
        post(&all, &generated).titled("generate a name"),
        delete(format!("{all}?labelSelector=of%3D{namespace}-g")).titled("delete the generated"),
        delete(&one).accept(META).titled("delete as metadata"),
        get(format!("{all}/{namespace}-none")).accept(TABLE).titled("missing as a table"),
    ]
}
