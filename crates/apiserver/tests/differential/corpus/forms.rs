//! Answers in other forms: tables, metadata, what `Accept` asks for.

use serde_json::json;

use super::subjects::Subject;
use crate::script::{Step, delete, get, post};

pub fn steps(subject: &Subject, namespace: &str) -> Vec<Step> {
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
        post(&all, &object).accept(META).called("create as metadata"),
        get(&one).accept(META).called("get as metadata"),
        get(format!("{all}?{mine}")).accept(METAS).called("list as metadata"),
        get(format!("{all}?{mine}&includeObject=None"))
            .accept(TABLE)
            .called("list as a table without objects"),
        get(format!("{all}?{mine}&includeObject=Bogus")).accept(TABLE).called("a table with something odd"),
        get(format!("{all}?watch=1&timeoutSeconds=1&{mine}")).accept(META).called("watch as metadata"),
        get(&one).accept("application/json;as=Bogus;v=v1;g=meta.k8s.io").called("as something else"),
        get(&one).accept("image/png").called("as a picture"),
        get(&one).accept("*/*").called("as anything"),
        get(&one)
            .accept("application/vnd.kubernetes.protobuf;q=0.1,application/json")
            .called("as JSON if need be"),
        get(&one).accept("").called("as nothing in particular"),
        post(&all, &generated).called("generate a name"),
        delete(format!("{all}?labelSelector=of%3D{namespace}-g")).called("delete the generated"),
        delete(&one).accept(META).called("delete as metadata"),
        get(format!("{all}/{namespace}-none")).accept(TABLE).called("missing as a table"),
    ]
}
