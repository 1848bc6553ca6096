//! Which claim each wrong decision breaks: a check that fails for another reason has not seen it.

use crate::checks::Claim;

/// Each claim with the wrong decisions that break it. A decision may break several; one of them must be found broken.
pub(super) const REASONS: &[(Claim, &[&str])] = &[
    (
        Claim::MarginOnTheMeasuredPartOnce,
        &["margin_on_the_whole_reservation", "margin_applied_twice", "margin_left_out", "exact_part_predicted_twice"],
    ),
    (
        Claim::FitHoldsInsideItsRangeOnly,
        &["user_fit_used_above_its_range", "user_fit_used_below_its_range", "smaller_of_both_outside_the_range"],
    ),
    (
        Claim::LineIsAboveEveryCountedWindow,
        &["least_squares_instead_of_envelope", "smallest_demand_of_each_size_fitted"],
    ),
    (Claim::DemandIsCovered, &["margin_left_out", "least_squares_instead_of_envelope"]),
    (Claim::OverReservationIsLimited, &["over_reservation_not_limited"]),
    (Claim::TwoSizesMakeNoLine, &["too_few_sizes_accepted"]),
    (Claim::UnknownAllocatorGetsTheMost, &["allocator_fall_back_takes_the_first"]),
    // ---- attempts and what counts ----
    (Claim::NothingJoinsBeforeItsAttemptHasFinished, &["live_windows_join"]),
    (Claim::AttemptIsPricedByItsPlan, &["priced_from_the_same_attempt"]),
    (Claim::StoppedAttemptNeverJoins, &["stopped_attempt_joins"]),
    (Claim::FailedAttemptNeverJoins, &["failed_attempt_joins"]),
    (Claim::BrokenOffAttemptNeverJoins, &["incomplete_attempt_joins"]),
    (Claim::AttemptFinishesWhole, &["attempt_finished_with_runs_missing"]),
    (Claim::LastTryCountsAlone, &["first_try_counts"]),
    (Claim::WarmUpNeverCounts, &["warm_up_counts"]),
    (Claim::MeasuredWindowsCount, &["warm_up_counts"]),
    (Claim::InvalidWindowNeverCounts, &["invalid_window_counts"]),
    (Claim::PartlyResidentWindowNeverCounts, &["partly_resident_window_counts"]),
    (Claim::RoomLeftNeverCounts, &["window_in_room_left_counts"]),
    (Claim::OtherSoftwareNeverCounts, &["hard_environment_not_compared", "shipped_for_another_kernel_used"]),
    (Claim::OtherCardNeverCounts, &["other_card_counts"]),
    (Claim::SupersededEstimatorNeverCounts, &["superseded_estimator_counts"]),
    // ---- fragmentation ----
    (Claim::SurplusIsLeftOut, &["fragmentation_rule_off"]),
    (Claim::EachAttemptIsItsOwnReference, &["fragmentation_pools_attempts"]),
    (Claim::AllocatedGrowthIsNeed, &["fragmentation_ignores_flat_allocated"]),
    (Claim::OneGrowthStepIsRounding, &["fragmentation_ignores_growth_step"]),
    // ---- offload ----
    (Claim::MeasuredLockMovesOthersOffWhole, &["calibration_offload_off", "calibration_offload_splits"]),
    (Claim::OrdinaryLockMovesNothingNeedlessly, &["calibration_offload_outside_calibration"]),
    (
        Claim::OrdinaryLockMovesTheLeast,
        &["offload_never_stops_early", "offload_whole_outside_calibration", "largest_moved_off_first"],
    ),
    (Claim::ResidentModelStillGetsItsWorkingMemory, &["working_memory_ignored_when_nothing_is_missing"]),
    // ---- plan ----
    (
        Claim::PlannedSizeEndsResidentAndValid,
        &[
            "plan_without_floor_for_others",
            "plan_without_retained_bytes",
            "plan_with_partly_resident_sizes",
            "plan_without_the_measuring_allowance",
            "plan_below_the_floor",
        ],
    ),
    (Claim::PlanIsPricedByTheFitsOfNow, &["plan_from_stale_fits"]),
    // ---- reset ----
    (Claim::ResetLeavesOtherModels, &["reset_removes_other_models"]),
    (Claim::ResetLeavesOtherCards, &["reset_removes_other_devices"]),
    (Claim::ResetCoversEveryLine, &["reset_removes_too_little"]),
    (Claim::RunningAttemptIsNotReset, &["reset_while_running"]),
    // ---- display ----
    (Claim::FailureGoesWithANewerSuccess, &["stale_failure_shown"]),
    (Claim::UncountedSizeSaysSo, &["uncounted_row_shown_as_counted", "invalid_window_counts"]),
    (Claim::SharedLineShowsItsCalibration, &["shared_line_shown_as_built_in"]),
    (Claim::OutdatedMarkClears, &["outdated_mark_never_clears"]),
    (Claim::OtherSoftwareIsNotShown, &["other_software_colours_the_state"]),
    (Claim::UnreadableStoreIsSaid, &["unreadable_store_shown_as_empty"]),
    // ---- store ----
    (Claim::StoreHasOneWriter, &["store_written_without_the_lock"]),
    (Claim::StoreIsReplacedWhole, &["store_not_atomic"]),
    (Claim::UnreadableFileIsKept, &["unreadable_file_overwritten"]),
    (Claim::OtherCardsFileIsKept, &["other_device_file_used"]),
    (Claim::UnchangedFileIsNotWritten, &["unchanged_file_written_again"]),
    // ---- probe ----
    (Claim::WeightsBesideAreNotBilled, &["colock_not_subtracted"]),
    (Claim::InnerPeakIsBilledOnce, &["nested_outer_not_suspended"]),
    (Claim::OuterPeakIsKept, &["outer_peak_lost_to_the_reset"]),
    (Claim::OverlappingWindowsAreInvalid, &["overlapping_windows_believed"]),
    (Claim::ForeignLockIsSeen, &["foreign_lock_counted_before_registering", "foreign_lock_during_not_seen"]),
    (Claim::EveryWindowIsRecorded, &["unlock_not_recorded"]),
    (Claim::PinIsReleasedOnce, &["host_pin_not_released"]),
    (Claim::BaselineIsReleased, &["baseline_not_released"]),
    (Claim::PartialResidencyIsSaid, &["partial_residency_not_marked"]),
    (Claim::RetryIsSeen, &["retry_ignored", "retry_not_counted"]),
    (Claim::SpillIsSeen, &["spill_ignored"]),
    (Claim::OutOfMemoryIsSeen, &["out_of_memory_ignored", "out_of_memory_not_counted"]),
    (Claim::FailureIsSeen, &["failed_operation_not_marked"]),
    (Claim::ProbeFailureIsSeen, &["probe_failure_ignored"]),
    (
        Claim::DemandIsTheLargestDelta,
        &["reserved_growth_left_out_of_the_demand", "driver_growth_left_out_of_the_demand"],
    ),
    (Claim::AllowanceIsAskedFor, &["measuring_allowance_left_out"]),
    (Claim::IdleScopeAsksNothing, &["idle_scope_does_work"]),
    // ---- budget ----
    (
        Claim::PressureIsSaidOnce,
        &["warning_left_out", "warning_prints_what_was_asked", "warning_repeated", "submodel_dropped_from_a_key"],
    ),
    (
        Claim::ScenarioBudget,
        &[
            "credit_left_out",
            "inactive_splits_credited",
            "credited_under_expandable_segments",
            "floor_ignored",
            "cap_taken_for_physical_memory",
        ],
    ),
    (
        Claim::ScenarioMoves,
        &[
            "wrong_device_read",
            "impossible_request_pursued",
            "calibration_offload_off",
            "calibration_offload_splits",
            "calibration_offload_outside_calibration",
            "offload_never_stops_early",
            "offload_whole_outside_calibration",
            "largest_moved_off_first",
            "working_memory_ignored_when_nothing_is_missing",
        ],
    ),
    (Claim::NoOtherDeviceIsAsked, &["wrong_device_read"]),
    (Claim::SmallShortfallIsTolerated, &["small_shortfall_not_tolerated"]),
    (Claim::ScenarioResidency, &["small_shortfall_not_tolerated", "impossible_request_pursued"]),
    (Claim::DroppedModelStaysWhileNeeded, &["dropped_while_pinned", "host_pin_not_released"]),
    (Claim::ScenarioCounters, &["failed_load_leaves_bytes_behind", "retry_not_counted", "offload_never_stops_early"]),
    (Claim::ScenarioOutcome, &["idle_segments_not_given_back"]),
    (
        Claim::ScenarioWindow,
        &["baseline_not_released", "colock_not_subtracted", "retry_ignored", "partial_residency_not_marked"],
    ),
    (
        Claim::ScenarioWarnings,
        &["submodel_dropped_from_a_key", "warning_prints_what_was_asked", "warning_repeated", "floor_ignored"],
    ),
    (Claim::FailedLockIsNotCounted, &["failed_lock_stays_counted"]),
    // ---- allocator and simulated card ----
    (
        Claim::AllocatorCountsAsRecorded,
        &[
            "allocator_collects_garbage_of_any_age",
            "allocator_freed_block_not_merged_with_the_one_before",
            "allocator_growable_size_ignored",
            "allocator_keeps_free_segments_when_emptied",
            "allocator_keeps_the_last_whole_page",
            "allocator_limit_not_checked",
            "allocator_segments_not_rounded",
            "allocator_small_request_takes_an_oversize_block",
            "allocator_splits_large_blocks_for_any_remainder",
            "allocator_takes_more_than_the_best_fit",
            "idle_segments_not_given_back",
            "out_of_memory_not_counted",
            "retry_not_counted",
        ],
    ),
    (Claim::OthersMemoryCannotBeHad, &["simulated_card_ignores_other_processes"]),
    (Claim::FailedMapKeepsNothing, &["simulated_card_keeps_pages_of_a_failed_map"]),
    (Claim::PoolBoundCoversWhatComesAndGoes, &["stream_ordered_bound_without_fragmentation"]),
    // ---- reports, shipped data, snapshots ----
    (Claim::NewerReportIsRefused, &["newer_report_read"]),
    (Claim::ReportIsReplacedWhole, &["report_not_atomic"]),
    (Claim::ReportNamesNobody, &["report_not_redacted"]),
    (Claim::WithdrawnStaysWithdrawn, &["withdrawal_forgotten", "withdrawn_report_used"]),
    (Claim::AttemptsOfTwoMachinesStayApart, &["attempts_of_one_name_pooled"]),
    (Claim::OnlyRealFiguresAreShipped, &["simulated_windows_shipped"]),
    (Claim::SoftwareIsShippedApart, &["hard_environments_pooled"]),
    (Claim::LossNeedsAWord, &["lost_device_accepted", "drop_below_a_measured_point_accepted", "large_change_accepted"]),
    (Claim::OddMachineIsNamed, &["odd_machine_not_named"]),
    (Claim::SnapshotHasLimits, &["gzip_without_limit", "snapshot_without_limit", "pickle_without_limit"]),
    (Claim::StrandedMemoryIsNotFree, &["split_segment_given_back"]),
    (Claim::SnapshotBeginsInTheMiddle, &["snapshot_begins_empty"]),
    // ---- the harness itself ----
    (Claim::ShardsHoldEveryTrialOnce, &["shards_counted_from_zero"]),
    (Claim::IgnoredIsNotPassed, &["ignored_trial_passes", "required_gpu_not_missed"]),
    (Claim::NothingSeenIsAFailure, &["nothing_seen_passes"]),
];

/// The claims that a wrong decision breaks.
pub(super) fn claims_of(name: &str) -> Vec<Claim> {
    REASONS.iter().filter(|(_, names)| names.contains(&name)).map(|(claim, _)| *claim).collect()
}
