//! What the checks claim, by name: a wrong decision must break the claim that it is about, not just anything.

use super::CheckError;

/// A claim about the program that a check can find broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Claim {
    /// A reservation is the exact part plus 1.05 times the measured part, and nothing else.
    MarginOnTheMeasuredPartOnce,
    /// Outside the measured sizes the shipped line holds where it asks for more.
    FitHoldsInsideItsRangeOnly,
    /// No counted window lies above its line.
    LineIsAboveEveryCountedWindow,
    /// Two sizes make no line.
    TwoSizesMakeNoLine,
    /// Every demand is covered by its reservation.
    DemandIsCovered,
    /// Inside the measured range the reservation is the fit's.
    ReservationIsTheFits,
    /// What is reserved beyond the demand stays within the family's limit.
    OverReservationIsLimited,
    /// An allocator of which nothing is shipped gets the most that is shipped of any.
    UnknownAllocatorGetsTheMost,

    /// No window joins a fit before every run of its attempt has finished.
    NothingJoinsBeforeItsAttemptHasFinished,
    /// Every run of an attempt is priced as its plan said.
    AttemptIsPricedByItsPlan,
    /// What was measured before somebody stopped counts for nothing.
    StoppedAttemptNeverJoins,
    /// What was measured before a run failed counts for nothing.
    FailedAttemptNeverJoins,
    /// What was measured before the process died counts for nothing.
    BrokenOffAttemptNeverJoins,
    /// An attempt with runs missing cannot finish.
    AttemptFinishesWhole,
    /// Of a run that was tried again only the last try counts.
    LastTryCountsAlone,
    /// Warm-up runs count for nothing.
    WarmUpNeverCounts,
    /// A window that something disturbed counts for nothing.
    InvalidWindowNeverCounts,
    /// A window of a partly resident model counts for nothing.
    PartlyResidentWindowNeverCounts,
    /// A window measured under other software counts for nothing.
    OtherSoftwareNeverCounts,
    /// A window of an older estimator version counts for nothing.
    SupersededEstimatorNeverCounts,
    /// A window of another kind of card counts for nothing.
    OtherCardNeverCounts,

    /// A window that ran in room left by others counts for nothing.
    RoomLeftNeverCounts,
    /// A warm allocator's surplus is seen and left out.
    SurplusIsLeftOut,
    /// An attempt is judged by its own smallest size.
    EachAttemptIsItsOwnReference,
    /// What is allocated beyond the smallest size's share is need, not fragmentation.
    AllocatedGrowthIsNeed,
    /// One more segment is rounding, not fragmentation.
    OneGrowthStepIsRounding,

    /// A measured lock moves every other unlocked model off, whole.
    MeasuredLockMovesOthersOffWhole,
    /// An ordinary lock with room to spare moves nothing off.
    OrdinaryLockMovesNothingNeedlessly,
    /// An ordinary lock moves off the smallest model first, and no more of it than it must.
    OrdinaryLockMovesTheLeast,
    /// A model that lacks a mebibyte of room is loaded whole all the same.
    SmallShortfallIsTolerated,
    /// A lock keeps its working memory free although nothing of its model is missing.
    ResidentModelStillGetsItsWorkingMemory,

    /// What a plan says fits ends fully resident and valid, whatever else is to be expected on the card.
    PlannedSizeEndsResidentAndValid,
    /// A plan is priced by what is known when it is made.
    PlanIsPricedByTheFitsOfNow,

    /// A reset leaves what other models measured.
    ResetLeavesOtherModels,
    /// A reset leaves what was measured on other kinds of cards.
    ResetLeavesOtherCards,
    /// A reset covers every line of the model.
    ResetCoversEveryLine,
    /// A model that is being measured is not reset.
    RunningAttemptIsNotReset,

    /// A failure is shown until a newer attempt succeeds, and not after.
    FailureGoesWithANewerSuccess,
    /// What failed under other software does not colour the state.
    OtherSoftwareIsNotShown,
    /// A size that joined no fit is shown as such, with the reason.
    UncountedSizeSaysSo,
    /// A model on a shared line is shown the line's calibration.
    SharedLineShowsItsCalibration,
    /// "May be outdated" clears when a newer attempt counts.
    OutdatedMarkClears,
    /// A record that cannot be read is said to be unreadable.
    UnreadableStoreIsSaid,

    /// Two writers of one store wait for each other.
    StoreHasOneWriter,
    /// A writer that dies in the middle leaves the old file whole.
    StoreIsReplacedWhole,
    /// A file that cannot be read is kept.
    UnreadableFileIsKept,
    /// A file of another card is neither used nor changed.
    OtherCardsFileIsKept,
    /// An update that changes nothing writes nothing.
    UnchangedFileIsNotWritten,

    /// Weights that come beside an operation are not in its demand.
    WeightsBesideAreNotBilled,
    /// An inner operation's peak is in its own window alone.
    InnerPeakIsBilledOnce,
    /// What an operation took before an inner one began is kept.
    OuterPeakIsKept,
    /// Operations of one step that overlap and do not nest leave no window that is believed.
    OverlappingWindowsAreInvalid,
    /// A foreign lock makes a window invalid, whenever it comes.
    ForeignLockIsSeen,
    /// A measured step leaves its window in the scope.
    EveryWindowIsRecorded,
    /// Models stay pinned while a window is open and not a moment longer.
    PinIsReleasedOnce,
    /// A window begins with nothing idle in the reserve.
    BaselineIsReleased,
    /// A window says what of its model was missing.
    PartialResidencyIsSaid,
    /// A run that had to give memory back and try again makes its window invalid.
    RetryIsSeen,
    /// Memory that stays in the host makes a window invalid.
    SpillIsSeen,
    /// A run that found too little memory makes its window invalid for that reason.
    OutOfMemoryIsSeen,
    /// A run that failed makes its window invalid.
    FailureIsSeen,
    /// A probe that could not look makes its window invalid.
    ProbeFailureIsSeen,
    /// A demand is the largest of what was allocated, reserved and lent by the driver.
    DemandIsTheLargestDelta,
    /// A measured lock asks for the allowance beyond its estimate.
    AllowanceIsAskedFor,
    /// A lock outside every scope asks nothing of the probe.
    IdleScopeAsksNothing,

    /// A lock that finds too little says so once, in the log, with every name whole and the effective figure.
    PressureIsSaidOnce,

    /// What a device is said to hold is what it holds.
    ScenarioBudget,
    /// Nothing else moves than what the scenario says.
    ScenarioMoves,
    /// What is resident is what the scenario says.
    ScenarioResidency,
    /// The counters are what the scenario says.
    ScenarioCounters,
    /// A step ends as the scenario says.
    ScenarioOutcome,
    /// People are warned of what the scenario says.
    ScenarioWarnings,
    /// The window is what the scenario says.
    ScenarioWindow,
    /// No other device of the process is asked.
    NoOtherDeviceIsAsked,

    /// The measured model of a pipeline is fully resident.
    MeasuredModelIsResident,
    /// Windows of a calibration that nothing disturbs are valid.
    UndisturbedWindowIsValid,
    /// The measured windows count, and no others.
    MeasuredWindowsCount,
    /// Cache, allocator and driver agree to the byte.
    BooksAgree,
    /// A dropped model stays until its last lock and its last window are gone.
    DroppedModelStaysWhileNeeded,
    /// A lock that failed is not counted: its model can be moved off again.
    FailedLockIsNotCounted,
    /// A failed lock leaves the cache as it was.
    FailureLeavesTheCacheAsItWas,
    /// Weights, context and reservation are enough.
    ReservationIsEnough,

    /// Every counter of the allocator is the recorded one after every step of the recordings.
    AllocatorCountsAsRecorded,
    /// What another process holds cannot be had.
    OthersMemoryCannotBeHad,
    /// A map that fails half-way keeps nothing.
    FailedMapKeepsNothing,
    /// The bound on the driver's own pool covers what comes and goes in it.
    PoolBoundCoversWhatComesAndGoes,

    /// A report of a newer format is refused.
    NewerReportIsRefused,
    /// A report is replaced whole.
    ReportIsReplacedWhole,
    /// A published report names no person and no folder.
    ReportNamesNobody,
    /// What was withdrawn stays withdrawn.
    WithdrawnStaysWithdrawn,
    /// Attempts of two machines stay two.
    AttemptsOfTwoMachinesStayApart,
    /// Only figures of real cards are shipped.
    OnlyRealFiguresAreShipped,
    /// Different software makes different shipped lines.
    SoftwareIsShippedApart,
    /// A shipped line that loses something needs somebody's word.
    LossNeedsAWord,
    /// A machine far from the others is named.
    OddMachineIsNamed,
    /// A snapshot beyond a limit is refused.
    SnapshotHasLimits,
    /// What lies beside a live block is not counted as free.
    StrandedMemoryIsNotFree,
    /// What was live before a recording began is part of it.
    SnapshotBeginsInTheMiddle,

    /// The shards together hold every trial once.
    ShardsHoldEveryTrialOnce,
    /// A trial that could not run is not passed.
    IgnoredIsNotPassed,
    /// A check that saw nothing has failed.
    NothingSeenIsAFailure,
}

impl std::fmt::Display for Claim {
    /// The name as words: `demand is covered`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = format!("{self:?}");
        for (index, letter) in name.chars().enumerate() {
            if letter.is_uppercase() && index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{}", letter.to_lowercase())?;
        }
        Ok(())
    }
}

impl Claim {
    /// Finds the claim broken, in words, unless it holds.
    ///
    /// # Errors
    /// [`CheckError::Broken`] where it does not hold.
    pub fn holds(self, holds: bool, text: impl FnOnce() -> String) -> Result<(), CheckError> {
        if holds { Ok(()) } else { Err(CheckError::Broken { claim: self, text: text() }) }
    }

    /// Finds the claim broken unless two figures are equal.
    ///
    /// # Errors
    /// [`CheckError::Broken`] where they differ.
    pub fn equal<T: PartialEq + std::fmt::Debug>(self, what: &str, found: T, expected: T) -> Result<(), CheckError> {
        self.holds(found == expected, || format!("{what}: {found:?}, expected {expected:?}"))
    }
}
