//! Tests of single rules, then properties of the reconcile loop, which reaches the desired state from any
//! state.

use super::*;
use crate::testing::{deleting, mk_deployment, mk_deployment_of, mk_instance, mk_template, ready};
use polis_api::ObjectExt;
use polis_api::compute::EmbeddedMetadata;
use proptest::prelude::*;

/// The actions of a plan as text: `create web-0`, `delete web-1 Outdated`, `wait web-1 NotReady`.
fn planned(deployment: &WorkloadDeployment, existing: &[Instance]) -> Vec<String> {
    let plan = plan(deployment, existing, &InstanceDefaults::default());
    let text = |action: &InstanceAction| match action {
        InstanceAction::Create(instance) => format!("create {}", instance.name()),
        InstanceAction::Delete { object, reason } => format!("delete {} {reason:?}", object.name),
        InstanceAction::Wait { name, reason } => format!("wait {name} {reason:?}"),
    };
    plan.actions.iter().map(text).collect()
}

fn mk_changed(replicas: i32) -> WorkloadDeployment {
    let mut deployment = mk_deployment_of("web", replicas);
    deployment.spec.template = mk_template("app:2");
    deployment
}

fn mk_ready(ordinal: u32) -> Instance {
    ready(mk_instance(&mk_deployment("web"), ordinal))
}

fn mk_unready(ordinal: u32) -> Instance {
    mk_instance(&mk_deployment("web"), ordinal)
}

fn mk_labelled(ordinal: u32, index: Option<&str>) -> Instance {
    let mut instance = mk_ready(ordinal);
    let labels = instance.metadata.labels.as_mut().unwrap();
    match index {
        Some(index) => labels.insert(labels::INSTANCE_INDEX.into(), index.into()),
        None => labels.remove(labels::INSTANCE_INDEX),
    };
    instance
}

fn mk_named(mut instance: Instance, name: &str) -> Instance {
    instance.metadata.name = Some(name.into());
    instance.metadata.uid = Some(format!("uid-{name}"));
    instance
}

#[test]
fn a_new_deployment_creates_its_instances_in_order() {
    assert_eq!(planned(&mk_deployment_of("web", 2), &[]), ["create web-0", "create web-1"]);
}

#[test]
fn parallel_instances_do_not_wait_for_each_other_except_in_a_rollout() {
    let parallel = |mut deployment: WorkloadDeployment| {
        deployment.spec.scale_settings.instance_management_policy = PARALLEL.to_owned();
        deployment
    };
    let three = parallel(mk_deployment_of("web", 3));
    assert_eq!(planned(&three, &[mk_unready(0)]), ["create web-1", "create web-2", "wait web-0 NotReady"]);
    assert_eq!(
        planned(&three, &[deleting(mk_ready(0)), mk_ready(1)]),
        ["create web-2", "wait web-0 Terminating"]
    );
    let one = parallel(mk_deployment_of("web", 1));
    assert_eq!(
        planned(&one, &[mk_ready(0), deleting(mk_ready(3)), mk_ready(1), mk_ready(2)]),
        ["delete web-2 Surplus", "delete web-1 Surplus", "wait web-3 Terminating"]
    );
    let changed = parallel(mk_changed(2));
    assert_eq!(
        planned(&changed, &[mk_ready(0), mk_ready(1)]),
        ["delete web-1 Outdated", "delete web-0 Outdated"]
    );
    let mut new = ready(mk_instance(&changed, 1));
    new.status = None;
    assert_eq!(planned(&changed, &[mk_ready(0), new]), ["wait web-1 NotReady", "delete web-0 Outdated"]);
}

#[test]
fn the_next_action_is_the_first_of_the_plan() {
    let plan = plan(&mk_deployment_of("web", 2), &[], &InstanceDefaults::default());
    assert!(matches!(plan.next(), Some(InstanceAction::Create(first)) if first.name() == "web-0"));
}

#[test]
fn a_deployment_that_is_up_to_date_needs_no_action() {
    let plan = plan(&mk_deployment_of("web", 2), &[mk_ready(1), mk_ready(0)], &InstanceDefaults::default());
    assert_eq!(plan, InstancePlan::default());
}

#[test]
fn a_changed_template_replaces_instances_from_the_highest_ordinal_down() {
    assert_eq!(
        planned(&mk_changed(2), &[mk_ready(0), mk_ready(1)]),
        ["delete web-1 Outdated", "delete web-0 Outdated"]
    );
}

#[test]
fn the_next_instance_waits_until_the_one_before_is_ready() {
    assert_eq!(
        planned(&mk_deployment_of("web", 3), &[mk_ready(0), mk_unready(1)]),
        ["wait web-1 NotReady", "create web-2"]
    );
}

#[test]
fn a_terminating_instance_is_awaited() {
    let existing = [mk_ready(0), deleting(mk_ready(1))];
    assert_eq!(planned(&mk_deployment_of("web", 3), &existing), ["wait web-1 Terminating", "create web-2"]);
}

#[test]
fn scaling_down_deletes_the_highest_ordinal() {
    assert_eq!(planned(&mk_deployment_of("web", 1), &[mk_ready(0), mk_ready(1)]), ["delete web-1 Surplus"]);
    assert_eq!(
        planned(&mk_deployment_of("web", 0), &[mk_ready(0), mk_ready(1)]),
        ["delete web-1 Surplus", "delete web-0 Surplus"]
    );
}

#[test]
fn scaling_down_deletes_one_instance_at_a_time() {
    assert_eq!(
        planned(&mk_deployment_of("web", 0), &[mk_ready(0), deleting(mk_ready(1))]),
        ["wait web-1 Terminating"]
    );
}

#[test]
fn scaling_down_does_not_wait_for_an_instance_that_may_need_the_quota_of_the_surplus() {
    let existing = [mk_unready(0), mk_ready(1)];
    assert_eq!(
        planned(&mk_deployment_of("web", 1), &existing),
        ["delete web-1 Surplus", "wait web-0 NotReady"]
    );
}

#[test]
fn a_terminating_surplus_instance_does_not_keep_a_slot_empty() {
    assert_eq!(
        planned(&mk_deployment_of("web", 1), &[deleting(mk_ready(4))]),
        ["create web-0", "wait web-4 Terminating"]
    );
}

#[test]
fn a_later_spec_repairs_a_broken_rollout() {
    // web-1 got a template that never becomes ready; then the template changed again.
    assert_eq!(
        planned(&mk_changed(2), &[mk_ready(0), mk_unready(1)]),
        ["delete web-1 Outdated", "delete web-0 Outdated"]
    );
}

#[test]
fn a_broken_first_instance_is_replaced_before_the_second_is_created() {
    assert_eq!(planned(&mk_changed(2), &[mk_unready(0)]), ["delete web-0 Outdated", "create web-1"]);
}

#[test]
fn an_instance_of_the_current_template_is_awaited_until_it_is_ready() {
    let mut fresh = mk_instance(&mk_changed(2), 1);
    fresh.metadata.uid = Some("uid-fresh".into());
    assert_eq!(
        planned(&mk_changed(2), &[mk_ready(0), fresh]),
        ["wait web-1 NotReady", "delete web-0 Outdated"]
    );
}

#[test]
fn an_instance_of_another_implementation_is_kept_until_the_template_changes() {
    let mut foreign_made = mk_ready(0);
    foreign_made.spec.controller.as_mut().unwrap().template_hash = "6b7c9d4f".into();
    assert_eq!(planned(&mk_deployment("web"), std::slice::from_ref(&foreign_made)), [""; 0]);
    assert_eq!(planned(&mk_changed(1), &[foreign_made]), ["delete web-0 Outdated"]);
}

#[test]
fn an_invalid_ordinal_label_is_restored_from_the_name_without_a_restart() {
    for index in [None, Some(""), Some("-1"), Some("00"), Some("zero"), Some("99999999999")] {
        let plan = plan(&mk_deployment("web"), &[mk_labelled(0, index)], &InstanceDefaults::default());
        assert_eq!(plan.actions, [], "{index:?}");
        assert_eq!(plan.backfill[0].label(labels::INSTANCE_INDEX), Some("0"), "{index:?}");
    }
}

#[test]
fn an_instance_without_any_ordinal_is_deleted_first() {
    let unassigned = mk_named(mk_labelled(0, None), "odd");
    assert_eq!(planned(&mk_deployment("web"), &[unassigned]), ["delete odd NoSlot", "create web-0"]);
}

#[test]
fn an_instance_whose_ordinal_contradicts_its_name_is_deleted() {
    let existing = [mk_ready(0), mk_labelled(1, Some("2"))];
    assert_eq!(
        planned(&mk_deployment_of("web", 3), &existing),
        ["delete web-1 NoSlot", "wait web-1 Terminating", "create web-2"]
    );
}

#[test]
fn of_two_with_one_ordinal_the_one_with_the_expected_name_is_kept() {
    let second = mk_named(mk_ready(0), "a-second");
    assert_eq!(planned(&mk_deployment("web"), &[second, mk_ready(0)]), ["delete a-second NoSlot"]);
}

#[test]
fn of_two_with_one_ordinal_the_one_that_is_not_terminating_is_kept() {
    let second = mk_named(mk_ready(0), "a-second");
    assert_eq!(planned(&mk_deployment("web"), &[deleting(mk_ready(0)), second]), [""; 0]);
}

#[test]
fn of_two_unexpected_names_with_one_ordinal_the_ready_then_the_older_is_kept() {
    let unready = mk_named(mk_unready(0), "a");
    let young = mk_named(mk_ready(0), "b");
    let mut old = mk_named(mk_ready(0), "c");
    old.metadata.creation_timestamp = Some(crate::testing::at(1));
    assert_eq!(
        planned(&mk_deployment("web"), &[unready, young, old]),
        ["delete a NoSlot", "delete b NoSlot"]
    );
}

#[test]
fn an_instance_with_another_controller_is_reported_and_never_changed() {
    let mut theirs = mk_ready(0);
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-other".into();
    let plan = plan(&mk_deployment("web"), &[theirs], &InstanceDefaults::default());
    assert_eq!(plan.foreign, ["web-0"]);
    assert_eq!(plan.actions, [InstanceAction::Wait { name: "web-0".into(), reason: WaitReason::NameTaken }]);
    assert_eq!(plan.backfill, []);
}

#[test]
fn an_unowned_instance_with_the_labels_of_a_slot_is_adopted_only_under_its_name() {
    let mut unowned = mk_ready(0);
    unowned.metadata.owner_references = None;
    let plan_of = |instance| plan(&mk_deployment("web"), &[instance], &InstanceDefaults::default());
    let adopted = plan_of(unowned.clone());
    assert_eq!(adopted.actions, []);
    assert!(owner::is_controlled_by(&adopted.backfill[0].metadata, "uid-web"));
    assert_eq!(plan_of(mk_named(unowned, "theirs")).foreign, ["theirs"]);
}

#[test]
fn missing_labels_are_added_independently_of_the_actions_and_foreign_ones_are_kept() {
    let mut instance = mk_unready(0);
    let labels = instance.metadata.labels.as_mut().unwrap();
    labels.remove(labels::CITY_CODE);
    labels.insert("team".into(), "blue".into());
    let plan = plan(&mk_deployment("web"), &[instance], &InstanceDefaults::default());
    let labels = plan.backfill[0].metadata.labels.as_ref().unwrap();
    assert_eq!((labels[labels::CITY_CODE].as_str(), labels["team"].as_str()), ("dfw", "blue"));
    assert_eq!(plan.actions, [InstanceAction::Wait { name: "web-0".into(), reason: WaitReason::NotReady }]);
}

#[test]
fn a_name_that_is_too_long_for_a_host_is_reported_and_not_created() {
    let name = "w".repeat(63);
    let reason = WaitReason::NameTooLong;
    let plan = plan(&mk_deployment(&name), &[], &InstanceDefaults::default());
    assert_eq!(plan.actions, [InstanceAction::Wait { name: format!("{name}-0"), reason }]);
}

#[test]
fn a_new_instance_is_created_with_gates_labels_owner_and_finalizers() {
    let instance = new_instance(&mk_deployment("web"), 3, &InstanceDefaults::default());
    assert_eq!(instance.metadata.labels, mk_unready(3).metadata.labels);
    assert_eq!(instance.metadata.owner_references, mk_unready(3).metadata.owner_references);
    assert_eq!(instance.metadata.namespace.as_deref(), Some("ns-1"));
    assert_eq!(instance.spec, mk_unready(3).spec);
    assert_eq!(
        instance.metadata.finalizers.unwrap(),
        ["compute.datumapis.com/instance-controller", "quota.compute.datumapis.com/claim-cleanup"]
    );
}

#[test]
fn each_instance_has_the_template_keys_and_its_own_ordinal() {
    let mut deployment = mk_deployment("web");
    deployment.spec.template.metadata = Some(EmbeddedMetadata {
        labels: metadata::map([("tier", "front"), (labels::INSTANCE_INDEX, "77")]),
        annotations: metadata::map([("note", "n")]),
        ..Default::default()
    });
    let before = deployment.clone();
    let (first, second) = (
        new_instance(&deployment, 0, &InstanceDefaults::default()),
        new_instance(&deployment, 1, &InstanceDefaults::default()),
    );
    assert_eq!(first.label(labels::INSTANCE_INDEX), Some("0"));
    assert_eq!(second.label(labels::INSTANCE_INDEX), Some("1"));
    assert_eq!(first.label("tier"), Some("front"));
    assert_eq!(first.annotation("note"), Some("n"));
    assert_eq!(template::instance_hash(&first), template::instance_hash(&second));
    assert_eq!(deployment, before);
}

#[test]
fn spec_replicas_overrides_min_replicas_and_is_limited() {
    let mut deployment = mk_deployment_of("web", 2);
    assert_eq!(desired(&deployment), 2);
    for (replicas, expected) in [(5, 5), (0, 0), (-3, 0), (i32::MAX, 1000)] {
        deployment.spec.replicas = Some(replicas);
        assert_eq!(desired(&deployment), expected);
    }
    assert_eq!(desired(&deleting(deployment)), 0);
}

#[test]
fn deleting_a_deployment_deletes_its_instances_and_no_others() {
    let deployment = mk_deployment("web");
    let mut theirs = mk_named(mk_ready(0), "theirs");
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-other".into();
    let existing = [mk_ready(1), deleting(mk_ready(0)), theirs.clone()];
    assert_eq!(
        deletion_plan(&deployment, &existing),
        DeletionPlan::Delete(vec![ObjectRef::of(&mk_ready(1))])
    );
    assert_eq!(deletion_plan(&deployment, &[deleting(mk_ready(0))]), DeletionPlan::Delete(vec![]));
    assert_eq!(deletion_plan(&deployment, &[theirs]), DeletionPlan::Done);
}

/// Any existing instance of a deployment `web`.
fn any_instance() -> impl Strategy<Value = Instance> {
    let index =
        prop_oneof![4 => Just(None), 1 => Just(Some("-1")), 1 => Just(Some("")), 1 => Just(Some("1"))];
    (0u32..6, index, 0..4u8, any::<bool>(), 0..4u8, 0..4u8).prop_map(
        |(ordinal, index, name, is_ready, age, terminating)| {
            let source = if age == 0 { mk_deployment("web") } else { mk_changed(1) };
            let mut instance = mk_instance(&source, ordinal);
            if age == 1 {
                instance.spec.controller.as_mut().unwrap().template_hash = "6b7c9d4f".into();
            }
            if age == 2 {
                instance.spec.controller = None;
            }
            if is_ready {
                instance = ready(instance);
            }
            if let Some(index) = index {
                instance
                    .metadata
                    .labels
                    .as_mut()
                    .unwrap()
                    .insert(labels::INSTANCE_INDEX.into(), index.into());
            }
            if name == 0 {
                instance = mk_named(instance, &format!("odd-{ordinal}"));
            }
            if terminating == 0 { deleting(instance) } else { instance }
        },
    )
}

/// Instances of different names, as one namespace can hold them.
fn any_existing() -> impl Strategy<Value = Vec<Instance>> {
    prop::collection::vec(any_instance(), 0..8).prop_map(|mut instances| {
        instances.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        instances.dedup_by(|a, b| a.metadata.name == b.metadata.name);
        instances
    })
}

/// Simulates an API server and a provider that carry out the first action of a plan.
fn carry_out(instances: &mut Vec<Instance>, plan: &InstancePlan, serial: usize) {
    for fixed in &plan.backfill {
        let instance = instances.iter_mut().find(|i| i.metadata.name == fixed.metadata.name).unwrap();
        *instance = fixed.clone();
    }
    match plan.next() {
        None => {}
        Some(InstanceAction::Create(new)) => {
            assert!(
                instances.iter().all(|i| i.metadata.name != new.metadata.name),
                "a name was created twice"
            );
            let mut new = (**new).clone();
            new.metadata.uid = Some(format!("uid-{serial}"));
            new.metadata.resource_version = Some(serial.to_string());
            instances.push(new);
        }
        Some(InstanceAction::Delete { object, .. }) => {
            let instance = instances.iter_mut().find(|i| ObjectRef::of(&**i) == *object).unwrap();
            assert!(instance.metadata.deletion_timestamp.is_none(), "deleted twice");
            instance.metadata.deletion_timestamp = Some(crate::testing::at(500));
        }
        Some(InstanceAction::Wait { name, reason: WaitReason::NotReady }) => {
            let instance = instances.iter_mut().find(|i| i.name() == name).unwrap();
            *instance = ready(instance.clone());
        }
        Some(InstanceAction::Wait { name, reason: WaitReason::Terminating }) => {
            let before = instances.len();
            instances.retain(|i| i.name() != name || i.metadata.deletion_timestamp.is_none());
            assert!(instances.len() < before, "waits for {name}, which is not terminating");
        }
        Some(InstanceAction::Wait { reason, .. }) => panic!("waits because of {reason:?}"),
    }
}

proptest! {
    #[test]
    fn from_any_state_the_loop_reaches_the_desired_one(mut instances in any_existing(), replicas in 0i32..6) {
        let deployment = mk_changed(replicas);
        let bound = 4 * (instances.len() + replicas as usize) + 4;
        let mut reconciles = 0;
        loop {
            let plan = plan(&deployment, &instances, &InstanceDefaults::default());
            if plan.actions.is_empty() && plan.backfill.is_empty() {
                break;
            }
            reconciles += 1;
            prop_assert!(reconciles <= bound, "still {:?} after {} reconciles", plan.actions, reconciles);
            carry_out(&mut instances, &plan, reconciles);
        }
        instances.retain(|i| i.metadata.deletion_timestamp.is_none());
        let mut ordinals: Vec<_> = instances.iter().filter_map(labelled_ordinal).collect();
        ordinals.sort();
        prop_assert_eq!(ordinals, (0..replicas as u32).collect::<Vec<_>>());
        let hash = template::hash(&deployment.spec.template);
        prop_assert!(instances.iter().all(|i| is_ready(i) && template::is_current(i, &deployment.spec.template, &hash)));
    }

    #[test]
    fn a_plan_creates_no_existing_ordinal_and_none_twice(instances in any_existing(), replicas in 0i32..6) {
        let plan = plan(&mk_changed(replicas), &instances, &InstanceDefaults::default());
        let created = plan.actions.iter().filter_map(|action| match action {
            InstanceAction::Create(new) => labelled_ordinal(new),
            _ => None,
        });
        let created: Vec<_> = created.collect();
        let mut once = created.clone();
        once.dedup();
        prop_assert_eq!(&created, &once);
        let deployment = mk_changed(replicas);
        let existing: Vec<_> = instances.iter().filter_map(|i| ordinal(i, &deployment)).collect();
        prop_assert!(created.iter().all(|ordinal| !existing.contains(ordinal)));
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(mut instances in any_existing(), replicas in 0i32..6) {
        let one = plan(&mk_changed(replicas), &instances, &InstanceDefaults::default());
        instances.reverse();
        prop_assert_eq!(plan(&mk_changed(replicas), &instances, &InstanceDefaults::default()), one);
    }

    #[test]
    fn a_foreign_instance_is_never_deleted_or_written(mut instances in any_existing(), replicas in 0i32..6) {
        for instance in &mut instances {
            instance.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-other".into();
        }
        let plan = plan(&mk_changed(replicas), &instances, &InstanceDefaults::default());
        prop_assert!(plan.backfill.is_empty());
        let deletes = plan.actions.iter().filter(|action| matches!(action, InstanceAction::Delete { .. })).count();
        prop_assert_eq!(deletes, 0);
    }
}
