//! The federation as its users see it: cases that run with the same assertions on the embedded federation and on Karmada.
//!
//! A case gets a world with a hub and the members `dfw` and `ord`, both joined and ready, and makes its own namespace.
//! Cases of the second list are about what the embedded federation does better or what only its world can do.

pub mod bad_input;
pub mod deletion;
pub mod delivery;
pub mod dependencies;
pub mod matching;
pub mod members;
pub mod namespaces;
pub mod placement;
pub mod status;
pub mod world;

/// Cases that hold on both.
#[macro_export]
macro_rules! shared_cases {
    ($run:ident) => {
        $run! {
            delivery::an_object_reaches_the_clusters_that_its_policy_names,
            delivery::an_object_that_was_there_before_its_policy_is_found,
            delivery::a_change_of_the_object_reaches_the_member,
            delivery::labels_and_annotations_travel_and_go_again,
            delivery::what_belongs_to_the_hub_stays_there,
            delivery::a_copy_bears_the_marks_of_its_way,
            delivery::a_copy_deleted_by_hand_comes_back,
            delivery::a_hand_edit_is_undone,
            delivery::what_the_member_adds_is_kept,
            delivery::the_status_of_the_member_survives_an_update,
            delivery::a_config_map_travels_like_any_other_object,
            delivery::an_object_without_a_namespace_has_a_binding_of_its_own_sort,
            delivery::a_definition_travels_like_any_other_object_and_so_does_its_change,
            delivery::an_object_that_the_member_already_has_is_left_alone,
            delivery::a_policy_may_take_over_what_the_member_already_has,
            delivery::the_wish_of_the_object_about_conflicts_outranks_the_policy,
            delivery::a_suspended_object_gets_no_changes_until_it_is_released,
            delivery::one_member_alone_may_be_suspended,
            delivery::a_suspended_object_can_still_be_deleted,
            delivery::a_work_says_that_its_object_was_sent_and_taken,
            delivery::an_object_suspended_from_the_start_reaches_nobody_until_it_is_released,
            delivery::a_label_of_the_hub_that_a_hand_changed_is_put_back,
            delivery::a_secret_travels_with_its_sort_and_its_bytes,
            delivery::a_name_may_be_long_and_have_dots,
            delivery::every_sort_of_value_travels_unharmed,
            delivery::what_a_member_refuses_is_said_and_heals_with_the_object,
            matching::a_claimed_object_and_its_binding_show_whose_they_are,
            matching::a_selector_by_name_takes_only_that_name,
            matching::a_selector_by_label_follows_the_label,
            matching::a_policy_of_another_namespace_has_no_say,
            matching::a_policy_of_the_namespace_comes_before_one_of_the_hub,
            matching::the_higher_priority_wins,
            matching::the_closer_match_wins_among_equals,
            matching::the_alphabet_decides_among_the_rest,
            matching::a_claim_is_kept_against_a_better_policy,
            matching::what_a_deleted_policy_had_propagated_stays,
            matching::another_policy_may_take_over_from_a_deleted_one,
            matching::a_policy_that_no_longer_selects_an_object_lets_it_go,
            matching::a_selector_added_to_a_policy_is_heard,
            matching::a_policy_over_what_the_federation_is_made_of_does_nothing,
            matching::a_policy_of_the_hub_claims_objects_of_a_namespace,
            matching::a_name_in_a_selector_outranks_its_labels,
            matching::a_selector_may_hold_expressions_over_labels,
            matching::one_policy_may_select_several_kinds,
            matching::policies_of_a_namespace_keep_to_their_own_objects,
            matching::a_lazy_policy_waits_until_the_object_changes,
            placement::an_empty_placement_means_everywhere,
            placement::an_excluded_cluster_gets_nothing,
            placement::an_object_follows_the_labels_of_clusters,
            placement::nothing_that_fits_is_said_on_the_binding,
            placement::a_changed_placement_moves_the_object,
            placement::one_of_several_clusters_is_chosen_and_stays_chosen,
            placement::a_tainted_cluster_gets_nothing_new_and_keeps_what_it_has,
            placement::a_taint_that_goes_lets_waiting_objects_in,
            placement::groups_of_clusters_are_tried_in_order,
            placement::a_wish_for_more_clusters_than_fit_is_said_on_the_binding,
            placement::replicas_are_shared_out_by_static_weights,
            placement::replicas_that_are_not_divided_are_the_same_everywhere,
            placement::a_field_of_clusters_chooses_among_them,
            placement::an_exclusion_outranks_a_name,
            placement::clusters_must_fit_by_name_and_by_label,
            placement::a_cluster_that_is_added_leaves_the_first_copy_as_it_is,
            placement::a_binding_tells_which_of_its_states_was_placed,
            placement::a_tainted_cluster_takes_what_tolerates_it,
            status::a_binding_tells_what_each_member_says,
            status::without_a_script_the_object_itself_says_nothing,
            status::a_script_adds_the_members_up_and_follows_them,
            status::a_status_on_the_hub_does_not_come_to_members,
            status::a_script_chooses_what_is_carried_back,
            status::a_script_tells_whether_a_copy_is_well,
            status::a_script_keeps_what_the_member_decides,
            status::a_member_that_an_object_has_left_is_no_longer_told_of,
            status::a_script_for_a_kind_that_nobody_has_harms_nothing,
            deletion::a_deleted_object_takes_its_copies_with_it,
            deletion::an_object_made_anew_at_once_is_a_new_object_everywhere,
            deletion::a_member_may_keep_its_copy,
            deletion::a_finalizer_on_the_hub_holds_the_copies_too,
            deletion::the_end_of_one_object_leaves_its_neighbours,
            deletion::a_policy_may_ask_later_that_members_keep_their_copies,
            deletion::an_object_and_its_policy_may_go_together,
            dependencies::what_an_object_needs_goes_where_it_goes,
            dependencies::what_nobody_needs_any_more_goes_from_members,
            dependencies::what_an_object_needs_may_come_later,
            dependencies::what_an_object_needs_may_have_a_policy_of_its_own,
            namespaces::a_namespace_reaches_every_member_with_its_labels,
            namespaces::a_namespace_may_ask_to_stay,
            namespaces::a_deleted_namespace_goes_from_members,
            namespaces::what_a_namespace_held_goes_with_it,
            namespaces::namespaces_of_the_federation_stay_at_home,
            namespaces::a_namespace_that_a_member_has_already_is_shared,
            members::a_member_shows_that_it_is_ready_and_what_it_serves,
            members::what_its_owner_says_of_a_member_stays,
        }
    };
}

/// Cases that hold on the embedded federation only: the case says why.
#[macro_export]
macro_rules! embedded_cases {
    ($run:ident) => {
        $run! {
            placement::an_object_waits_for_its_api_and_is_placed_when_the_api_appears,
            status::the_whole_status_of_a_member_comes_to_the_hub_with_its_empty_lists,
            status::a_script_that_comes_later_is_applied_to_what_is_there,
            status::a_script_that_fails_is_named_and_stops_nothing_else,
            status::a_script_that_never_ends_is_stopped_and_named,
            deletion::a_copy_to_be_kept_that_is_gone_holds_nothing_up,
            deletion::a_copy_that_takes_time_to_go_is_waited_for,
            deletion::a_deleted_binding_comes_back_with_its_copies,
            deletion::a_work_deleted_by_hand_comes_back,
            members::a_cluster_without_a_secret_says_so,
            members::a_cluster_that_cannot_be_reached_is_not_ready_and_can_be_let_go,
            members::losing_a_member_moves_nothing_and_its_return_settles_everything,
            members::a_member_that_leaves_is_drained,
            members::a_member_that_joins_later_gets_what_is_its_due,
            members::a_member_that_leaves_while_it_is_lost_is_let_go,
            members::one_member_joined_twice_is_refused,
            bad_input::a_policy_over_itself_and_its_own_bindings_is_told_so,
            bad_input::a_policy_over_everything_leaves_the_namespaces_of_the_federation_alone,
            bad_input::of_two_policies_over_one_object_the_one_that_gets_nothing_is_told_so,
            bad_input::a_cluster_without_labels_gets_what_is_for_everyone_and_the_rest_is_said,
            bad_input::a_script_for_a_kind_that_nobody_has_is_named,
            bad_input::an_object_that_is_too_large_for_the_member_is_said_and_heals_with_the_object,
            bad_input::an_object_that_is_too_large_to_be_carried_is_said,
        }
    };
}
