//! The rules of instance steps as sentences, then the loop as a whole: from any state to the wanted one.

use super::*;
use crate::testing::{deleting, mk_deployment, mk_deployment_of, mk_instance, mk_template, ready};
use polis_api::compute::EmbeddedMetadata;
use proptest::prelude::*;

/// A plan in short: `create web-0`, `delete web-1 Outdated`, `wait web-1 Ready`.
fn told(deployment: &WorkloadDeployment, standing: &[Instance]) -> Vec<String> {
    let plan = plan(deployment, standing, &Birth::default());
    let tell = |step: &Step| match step {
        Step::Create(instance) => format!("create {}", owner::name(&instance.metadata)),
        Step::Delete { exact, why } => format!("delete {} {why:?}", exact.name),
        Step::Wait { name, until } => format!("wait {name} {until:?}"),
    };
    plan.order.iter().map(tell).collect()
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
fn a_fresh_deployment_makes_its_instances_in_order() {
    assert_eq!(told(&mk_deployment_of("web", 2), &[]), ["create web-0", "create web-1"]);
}

#[test]
fn only_the_first_step_is_carried_out() {
    let plan = plan(&mk_deployment_of("web", 2), &[], &Birth::default());
    assert!(matches!(plan.next(), Some(Step::Create(first)) if owner::name(&first.metadata) == "web-0"));
}

#[test]
fn a_deployment_that_is_as_wanted_needs_nothing() {
    let plan = plan(&mk_deployment_of("web", 2), &[mk_ready(1), mk_ready(0)], &Birth::default());
    assert_eq!(plan, Plan::default());
}

#[test]
fn a_changed_template_replaces_from_the_highest_ordinal_down() {
    assert_eq!(
        told(&mk_changed(2), &[mk_ready(0), mk_ready(1)]),
        ["delete web-1 Outdated", "delete web-0 Outdated"]
    );
}

#[test]
fn the_next_instance_waits_for_the_one_before_to_be_ready() {
    assert_eq!(
        told(&mk_deployment_of("web", 3), &[mk_ready(0), mk_unready(1)]),
        ["wait web-1 Ready", "create web-2"]
    );
}

#[test]
fn an_instance_on_its_way_out_is_waited_for() {
    let standing = [mk_ready(0), deleting(mk_ready(1))];
    assert_eq!(told(&mk_deployment_of("web", 3), &standing), ["wait web-1 Gone", "create web-2"]);
}

#[test]
fn scaling_down_takes_the_highest_ordinal() {
    assert_eq!(told(&mk_deployment_of("web", 1), &[mk_ready(0), mk_ready(1)]), ["delete web-1 Surplus"]);
    assert_eq!(
        told(&mk_deployment_of("web", 0), &[mk_ready(0), mk_ready(1)]),
        ["delete web-1 Surplus", "delete web-0 Surplus"]
    );
}

#[test]
fn scaling_down_goes_one_at_a_time() {
    assert_eq!(told(&mk_deployment_of("web", 0), &[mk_ready(0), deleting(mk_ready(1))]), ["wait web-1 Gone"]);
}

#[test]
fn scaling_down_does_not_wait_for_an_instance_that_may_be_waiting_for_what_the_surplus_holds() {
    let standing = [mk_unready(0), mk_ready(1)];
    assert_eq!(told(&mk_deployment_of("web", 1), &standing), ["delete web-1 Surplus", "wait web-0 Ready"]);
}

#[test]
fn surplus_that_is_slow_to_go_does_not_keep_a_slot_empty() {
    assert_eq!(
        told(&mk_deployment_of("web", 1), &[deleting(mk_ready(4))]),
        ["create web-0", "wait web-4 Gone"]
    );
}

#[test]
fn a_broken_rollout_is_mended_by_a_later_spec() {
    // web-1 got a template that never becomes ready; then the template changed again.
    assert_eq!(
        told(&mk_changed(2), &[mk_ready(0), mk_unready(1)]),
        ["delete web-1 Outdated", "delete web-0 Outdated"]
    );
}

#[test]
fn a_broken_first_instance_is_replaced_before_the_second_is_made() {
    assert_eq!(told(&mk_changed(2), &[mk_unready(0)]), ["delete web-0 Outdated", "create web-1"]);
}

#[test]
fn an_instance_of_the_current_template_is_given_time_to_become_ready() {
    let mut fresh = mk_instance(&mk_changed(2), 1);
    fresh.metadata.uid = Some("uid-fresh".into());
    assert_eq!(told(&mk_changed(2), &[mk_ready(0), fresh]), ["wait web-1 Ready", "delete web-0 Outdated"]);
}

#[test]
fn an_instance_of_another_implementation_stays_until_the_template_changes() {
    let mut foreign_made = mk_ready(0);
    foreign_made.spec.controller.as_mut().unwrap().template_hash = "6b7c9d4f".into();
    assert_eq!(told(&mk_deployment("web"), std::slice::from_ref(&foreign_made)), [""; 0]);
    assert_eq!(told(&mk_changed(1), &[foreign_made]), ["delete web-0 Outdated"]);
}

#[test]
fn an_unreadable_ordinal_is_restored_from_the_name_and_nothing_restarts() {
    for index in [None, Some(""), Some("-1"), Some("00"), Some("zero"), Some("99999999999")] {
        let plan = plan(&mk_deployment("web"), &[mk_labelled(0, index)], &Birth::default());
        assert_eq!(plan.order, [], "{index:?}");
        assert_eq!(
            metadata::label(&plan.backfill[0].metadata, labels::INSTANCE_INDEX),
            Some("0"),
            "{index:?}"
        );
    }
}

#[test]
fn an_instance_of_ours_without_any_ordinal_is_a_stray_and_goes_first() {
    let stray = mk_named(mk_labelled(0, None), "odd");
    assert_eq!(told(&mk_deployment("web"), &[stray]), ["delete odd Stray", "create web-0"]);
}

#[test]
fn an_ordinal_that_contradicts_the_name_makes_a_stray() {
    let standing = [mk_ready(0), mk_labelled(1, Some("2"))];
    assert_eq!(
        told(&mk_deployment_of("web", 3), &standing),
        ["delete web-1 Stray", "wait web-1 Gone", "create web-2"]
    );
}

#[test]
fn of_two_with_one_ordinal_the_rightly_named_stays() {
    let second = mk_named(mk_ready(0), "a-second");
    assert_eq!(told(&mk_deployment("web"), &[second, mk_ready(0)]), ["delete a-second Stray"]);
}

#[test]
fn of_two_with_one_ordinal_the_one_that_is_not_leaving_stays() {
    let second = mk_named(mk_ready(0), "a-second");
    assert_eq!(told(&mk_deployment("web"), &[deleting(mk_ready(0)), second]), [""; 0]);
}

#[test]
fn of_two_odd_names_with_one_ordinal_the_ready_then_the_older_stays() {
    let unready = mk_named(mk_unready(0), "a");
    let young = mk_named(mk_ready(0), "b");
    let mut old = mk_named(mk_ready(0), "c");
    old.metadata.creation_timestamp = Some(crate::testing::at(1));
    assert_eq!(told(&mk_deployment("web"), &[unready, young, old]), ["delete a Stray", "delete b Stray"]);
}

#[test]
fn what_somebody_else_controls_is_reported_and_never_touched() {
    let mut theirs = mk_ready(0);
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-stranger".into();
    let plan = plan(&mk_deployment("web"), &[theirs], &Birth::default());
    assert_eq!(plan.foreign, ["web-0"]);
    assert_eq!(plan.order, [Step::Wait { name: "web-0".into(), until: Until::NameFree }]);
    assert_eq!(plan.backfill, []);
}

#[test]
fn an_unowned_instance_with_our_labels_is_adopted_only_under_its_own_name() {
    let mut unowned = mk_ready(0);
    unowned.metadata.owner_references = None;
    let plan_of = |instance| plan(&mk_deployment("web"), &[instance], &Birth::default());
    let adopted = plan_of(unowned.clone());
    assert_eq!(adopted.order, []);
    assert!(owner::is_controlled_by(&adopted.backfill[0].metadata, "uid-web"));
    assert_eq!(plan_of(mk_named(unowned, "theirs")).foreign, ["theirs"]);
}

#[test]
fn missing_labels_are_added_beside_the_order_and_foreign_ones_stay() {
    let mut instance = mk_unready(0);
    let labels = instance.metadata.labels.as_mut().unwrap();
    labels.remove(labels::CITY_CODE);
    labels.insert("team".into(), "blue".into());
    let plan = plan(&mk_deployment("web"), &[instance], &Birth::default());
    let labels = plan.backfill[0].metadata.labels.as_ref().unwrap();
    assert_eq!((labels[labels::CITY_CODE].as_str(), labels["team"].as_str()), ("dfw", "blue"));
    assert_eq!(plan.order, [Step::Wait { name: "web-0".into(), until: Until::Ready }]);
}

#[test]
fn a_name_too_long_for_a_host_is_told_and_not_tried() {
    let name = "w".repeat(63);
    let until = Until::NameFits;
    let plan = plan(&mk_deployment(&name), &[], &Birth::default());
    assert_eq!(plan.order, [Step::Wait { name: format!("{name}-0"), until }]);
}

#[test]
fn a_new_instance_has_gates_labels_owner_and_finalizers_from_birth() {
    let instance = new_instance(&mk_deployment("web"), 3, &Birth::default());
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
fn each_instance_has_maps_of_its_own_and_the_templates_keys_in_them() {
    let mut deployment = mk_deployment("web");
    deployment.spec.template.metadata = Some(EmbeddedMetadata {
        labels: metadata::map([("tier", "front"), (labels::INSTANCE_INDEX, "77")]),
        annotations: metadata::map([("note", "n")]),
        ..Default::default()
    });
    let before = deployment.clone();
    let (first, second) =
        (new_instance(&deployment, 0, &Birth::default()), new_instance(&deployment, 1, &Birth::default()));
    assert_eq!(metadata::label(&first.metadata, labels::INSTANCE_INDEX), Some("0"));
    assert_eq!(metadata::label(&second.metadata, labels::INSTANCE_INDEX), Some("1"));
    assert_eq!(metadata::label(&first.metadata, "tier"), Some("front"));
    assert_eq!(metadata::annotation(&first.metadata, "note"), Some("n"));
    assert_eq!(template::fingerprint(&first), template::fingerprint(&second));
    assert_eq!(deployment, before);
}

#[test]
fn the_scale_subresource_wins_over_the_least_and_absurd_numbers_are_bounded() {
    let mut deployment = mk_deployment_of("web", 2);
    assert_eq!(desired(&deployment), 2);
    for (replicas, wanted) in [(5, 5), (0, 0), (-3, 0), (i32::MAX, 1000)] {
        deployment.spec.replicas = Some(replicas);
        assert_eq!(desired(&deployment), wanted);
    }
    assert_eq!(desired(&deleting(deployment)), 0);
}

#[test]
fn a_deployment_that_goes_takes_its_instances_and_only_its_own() {
    let deployment = mk_deployment("web");
    let mut theirs = mk_named(mk_ready(0), "theirs");
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-stranger".into();
    let standing = [mk_ready(1), deleting(mk_ready(0)), theirs.clone()];
    assert_eq!(
        withdrawal(&deployment, &standing),
        Withdrawal::Remove(vec![Exact::of(&mk_ready(1).metadata)])
    );
    assert_eq!(withdrawal(&deployment, &[deleting(mk_ready(0))]), Withdrawal::Remove(vec![]));
    assert_eq!(withdrawal(&deployment, &[theirs]), Withdrawal::Done);
}

/// Any instance that may stand in the way of a deployment `web`.
fn any_instance() -> impl Strategy<Value = Instance> {
    let index =
        prop_oneof![4 => Just(None), 1 => Just(Some("-1")), 1 => Just(Some("")), 1 => Just(Some("1"))];
    (0u32..6, index, 0..4u8, any::<bool>(), 0..4u8, 0..4u8).prop_map(
        |(ordinal, index, name, is_ready, age, leaving)| {
            let made_from = if age == 0 { mk_deployment("web") } else { mk_changed(1) };
            let mut instance = mk_instance(&made_from, ordinal);
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
            if leaving == 0 { deleting(instance) } else { instance }
        },
    )
}

/// Instances of different names, as one namespace can hold them.
fn any_standing() -> impl Strategy<Value = Vec<Instance>> {
    prop::collection::vec(any_instance(), 0..8).prop_map(|mut instances| {
        instances.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        instances.dedup_by(|a, b| a.metadata.name == b.metadata.name);
        instances
    })
}

/// What the world does with the first step of a plan: planes store, providers start and stop.
fn live(world: &mut Vec<Instance>, plan: &Plan, serial: usize) {
    for fixed in &plan.backfill {
        let place = world.iter_mut().find(|i| i.metadata.name == fixed.metadata.name).unwrap();
        *place = fixed.clone();
    }
    match plan.next() {
        None => {}
        Some(Step::Create(new)) => {
            assert!(world.iter().all(|i| i.metadata.name != new.metadata.name), "a name was made twice");
            let mut new = (**new).clone();
            new.metadata.uid = Some(format!("uid-{serial}"));
            new.metadata.resource_version = Some(serial.to_string());
            world.push(new);
        }
        Some(Step::Delete { exact, .. }) => {
            let place = world.iter_mut().find(|i| Exact::of(&i.metadata) == *exact).unwrap();
            assert!(place.metadata.deletion_timestamp.is_none(), "deleted twice");
            place.metadata.deletion_timestamp = Some(crate::testing::at(500));
        }
        Some(Step::Wait { name, until: Until::Ready }) => {
            let place = world.iter_mut().find(|i| owner::name(&i.metadata) == name).unwrap();
            *place = ready(place.clone());
        }
        Some(Step::Wait { name, until: Until::Gone }) => {
            let before = world.len();
            world.retain(|i| owner::name(&i.metadata) != name || i.metadata.deletion_timestamp.is_none());
            assert!(world.len() < before, "waits for {name}, which is not leaving");
        }
        Some(Step::Wait { until, .. }) => panic!("waits for {until:?}"),
    }
}

proptest! {
    #[test]
    fn from_any_state_the_loop_reaches_the_wanted_one(mut world in any_standing(), replicas in 0i32..6) {
        let deployment = mk_changed(replicas);
        let bound = 4 * (world.len() + replicas as usize) + 4;
        let mut passes = 0;
        loop {
            let plan = plan(&deployment, &world, &Birth::default());
            if plan.order.is_empty() && plan.backfill.is_empty() {
                break;
            }
            passes += 1;
            prop_assert!(passes <= bound, "still {:?} after {} passes", plan.order, passes);
            live(&mut world, &plan, passes);
        }
        world.retain(|i| i.metadata.deletion_timestamp.is_none());
        let mut ordinals: Vec<_> = world.iter().filter_map(labelled_ordinal).collect();
        ordinals.sort();
        prop_assert_eq!(ordinals, (0..replicas as u32).collect::<Vec<_>>());
        let hash = template::hash(&deployment.spec.template);
        prop_assert!(world.iter().all(|i| is_ready(i) && template::is_current(i, &deployment.spec.template, &hash)));
    }

    #[test]
    fn a_plan_makes_no_ordinal_that_stands_and_none_twice(world in any_standing(), replicas in 0i32..6) {
        let plan = plan(&mk_changed(replicas), &world, &Birth::default());
        let made = plan.order.iter().filter_map(|step| match step {
            Step::Create(new) => labelled_ordinal(new),
            _ => None,
        });
        let made: Vec<_> = made.collect();
        let mut once = made.clone();
        once.dedup();
        prop_assert_eq!(&made, &once);
        let deployment = mk_changed(replicas);
        let standing: Vec<_> = world.iter().filter_map(|i| ordinal(i, &deployment)).collect();
        prop_assert!(made.iter().all(|ordinal| !standing.contains(ordinal)));
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(mut world in any_standing(), replicas in 0i32..6) {
        let one = plan(&mk_changed(replicas), &world, &Birth::default());
        world.reverse();
        prop_assert_eq!(plan(&mk_changed(replicas), &world, &Birth::default()), one);
    }

    #[test]
    fn what_is_foreign_is_never_deleted_or_written(mut world in any_standing(), replicas in 0i32..6) {
        for instance in &mut world {
            instance.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-stranger".into();
        }
        let plan = plan(&mk_changed(replicas), &world, &Birth::default());
        prop_assert!(plan.backfill.is_empty());
        let deletes = plan.order.iter().filter(|step| matches!(step, Step::Delete { .. })).count();
        prop_assert_eq!(deletes, 0);
    }
}
