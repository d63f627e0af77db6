//! Conformance cases: the same assertions run on the embedded federation and on Karmada.
//!
//! A case gets a federation with a hub and the ready members `dfw` and `ord`, and creates its own namespace.
//! The second list has cases in which the embedded federation differs from Karmada, or which need its fault
//! injection.

pub mod bad_input;
pub mod deletion;
pub mod delivery;
pub mod dependencies;
pub mod fixture;
pub mod matching;
pub mod members;
pub mod namespaces;
pub mod placement;
pub mod status;

/// Cases for both federations.
#[macro_export]
macro_rules! shared_cases {
    ($run:ident) => {
        $run! {
            delivery::an_object_reaches_the_clusters_that_its_policy_names,
            delivery::an_object_older_than_its_policy_is_propagated,
            delivery::a_change_of_the_object_reaches_the_member,
            delivery::labels_and_annotations_are_propagated_and_removed,
            delivery::hub_only_fields_are_not_propagated,
            delivery::a_copy_has_the_metadata_of_its_origin,
            delivery::a_deleted_copy_is_created_again,
            delivery::drift_is_corrected,
            delivery::metadata_added_by_the_member_is_kept,
            delivery::the_status_of_the_member_survives_an_update,
            delivery::a_config_map_is_propagated,
            delivery::a_cluster_scoped_object_has_a_cluster_binding,
            delivery::a_crd_and_its_changes_are_propagated,
            delivery::an_unmanaged_object_of_the_member_is_not_overwritten,
            delivery::a_policy_may_overwrite_an_unmanaged_object,
            delivery::the_conflict_resolution_of_the_object_has_precedence,
            delivery::a_suspended_object_gets_no_changes_until_it_is_resumed,
            delivery::a_single_member_can_be_suspended,
            delivery::a_suspended_object_can_still_be_deleted,
            delivery::a_work_reports_dispatching_and_applied,
            delivery::an_object_created_suspended_is_not_propagated_until_it_is_resumed,
            delivery::drift_of_a_propagated_label_is_corrected,
            delivery::a_secret_is_propagated_with_its_type_and_data,
            delivery::a_long_name_with_dots_is_supported,
            delivery::all_json_types_are_propagated_unchanged,
            delivery::an_object_rejected_by_a_member_is_reported_and_retried_after_a_change,
            matching::a_claimed_object_and_its_binding_name_their_policy,
            matching::a_selector_by_name_selects_only_that_name,
            matching::a_selector_by_label_follows_the_label,
            matching::a_policy_of_another_namespace_is_ignored,
            matching::a_namespaced_policy_has_precedence_over_a_cluster_policy,
            matching::the_higher_priority_wins,
            matching::the_more_specific_selector_wins_at_equal_priority,
            matching::the_smaller_name_wins_otherwise,
            matching::a_claim_is_kept_against_a_policy_with_a_higher_rank,
            matching::objects_of_a_deleted_policy_stay_propagated,
            matching::another_policy_can_claim_the_objects_of_a_deleted_policy,
            matching::a_policy_that_no_longer_selects_an_object_releases_it,
            matching::a_selector_added_to_a_policy_takes_effect,
            matching::kinds_of_the_federation_are_not_propagated,
            matching::a_cluster_policy_claims_namespaced_objects,
            matching::a_selector_with_a_name_ignores_its_labels,
            matching::a_selector_supports_match_expressions,
            matching::a_policy_can_select_several_kinds,
            matching::policies_of_a_namespace_are_independent,
            matching::a_lazy_policy_waits_until_the_object_changes,
            placement::an_empty_placement_selects_all_clusters,
            placement::an_excluded_cluster_gets_nothing,
            placement::placement_follows_the_labels_of_clusters,
            placement::no_matching_cluster_is_reported_on_the_binding,
            placement::a_changed_placement_moves_the_object,
            placement::one_of_several_clusters_is_selected_and_stays_selected,
            placement::a_tainted_cluster_gets_nothing_new_and_keeps_what_it_has,
            placement::removing_a_taint_schedules_waiting_objects,
            placement::affinity_groups_are_tried_in_order,
            placement::too_few_clusters_for_the_spread_is_reported_on_the_binding,
            placement::replicas_are_divided_by_static_weights,
            placement::duplicated_replicas_are_equal_on_all_members,
            placement::a_field_selector_selects_clusters,
            placement::an_exclusion_has_precedence_over_a_name,
            placement::clusters_must_match_by_name_and_by_label,
            placement::adding_a_cluster_does_not_change_the_first_copy,
            placement::a_binding_reports_its_scheduled_generation,
            placement::a_tainted_cluster_gets_objects_that_tolerate_the_taint,
            status::a_binding_reports_the_status_of_each_member,
            status::without_a_script_the_hub_object_gets_no_status,
            status::a_script_aggregates_the_status_of_the_members,
            status::the_status_of_the_hub_object_is_not_propagated,
            status::a_script_selects_the_reflected_status,
            status::a_script_interprets_the_health_of_a_copy,
            status::a_script_retains_fields_of_the_member,
            status::the_status_of_a_former_member_is_removed,
            status::a_script_for_an_unserved_kind_has_no_side_effects,
            deletion::the_copies_of_a_deleted_object_are_deleted,
            deletion::a_recreated_object_is_a_new_object_on_all_members,
            deletion::a_policy_can_preserve_copies,
            deletion::a_finalizer_on_the_hub_object_delays_the_deletion_of_copies,
            deletion::a_deletion_does_not_affect_other_objects,
            deletion::copies_can_be_preserved_by_a_later_policy_change,
            deletion::an_object_and_its_policy_can_be_deleted_together,
            dependencies::dependencies_are_propagated_with_their_object,
            dependencies::an_unused_dependency_is_removed_from_members,
            dependencies::a_dependency_can_be_created_after_its_object,
            dependencies::a_dependency_can_have_its_own_policy,
            dependencies::dependents_in_two_clusters_share_a_dependency,
            dependencies::a_secret_can_be_a_dependency,
            dependencies::a_deleted_dependency_is_removed_and_comes_back_with_its_next_creation,
            dependencies::without_propagate_deps_a_dependency_stays_on_the_hub,
            dependencies::propagate_deps_can_be_switched_on_and_off,
            dependencies::an_object_can_have_several_dependencies,
            dependencies::an_object_without_dependencies_can_get_one,
            dependencies::an_object_and_its_dependency_can_be_deleted_together,
            dependencies::a_deleted_copy_of_a_dependency_is_created_again,
            dependencies::drift_of_a_dependency_is_corrected,
            dependencies::labels_and_annotations_of_a_dependency_are_propagated,
            dependencies::the_shipped_script_reads_the_list_of_companions,
            namespaces::a_namespace_reaches_every_member_with_its_labels,
            namespaces::a_namespace_can_opt_out_of_propagation,
            namespaces::a_deleted_namespace_is_deleted_on_members,
            namespaces::the_objects_of_a_deleted_namespace_are_deleted,
            namespaces::namespaces_of_the_federation_are_not_propagated,
            namespaces::an_existing_namespace_of_a_member_is_taken_over,
            members::a_member_reports_readiness_and_apis,
            members::user_fields_of_a_cluster_are_kept,
        }
    };
}

/// Cases for the embedded federation only; the comment of a case gives the reason.
#[macro_export]
macro_rules! embedded_cases {
    ($run:ident) => {
        $run! {
            placement::an_object_is_scheduled_when_its_api_appears,
            status::empty_lists_and_maps_survive_status_aggregation,
            status::a_new_script_is_applied_to_existing_objects,
            status::a_failing_script_is_reported_and_stops_nothing_else,
            status::an_endless_script_is_stopped_and_reported,
            deletion::a_missing_preserved_copy_does_not_block_the_deletion,
            deletion::the_deletion_of_a_copy_is_awaited,
            deletion::a_deleted_binding_is_created_again,
            deletion::a_deleted_work_is_created_again,
            members::a_cluster_without_a_secret_reports_the_error,
            members::an_unreachable_cluster_is_not_ready_and_can_be_removed,
            members::objects_stay_while_a_member_is_unreachable_and_sync_when_it_returns,
            members::a_removed_member_is_drained,
            members::a_new_member_gets_existing_objects,
            members::an_unreachable_member_can_be_removed,
            members::a_member_cannot_be_joined_twice,
            bad_input::a_policy_for_kinds_of_the_federation_gets_an_event,
            bad_input::a_policy_for_all_objects_skips_the_namespaces_of_the_federation,
            bad_input::a_policy_whose_objects_are_claimed_by_another_gets_an_event,
            bad_input::a_cluster_without_labels_matches_no_label_selector,
            bad_input::a_script_for_an_unserved_kind_gets_an_event,
            bad_input::an_object_too_large_for_a_member_is_reported_and_retried_after_a_change,
            bad_input::an_object_too_large_for_a_work_is_reported,
        }
    };
}
