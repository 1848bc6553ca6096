//! What cuDNN's codes mean for a convolution: that it has nothing for it, or that something is wrong.

use std::ops::RangeInclusive;

/// The codes by which the library says that it has nothing for what was asked: not supported at all, as a pattern, or for
/// the shape, element type, layout, kind of device, shared memory or padding. The others of their family say that the
/// installation lacks something (a newer driver, a part of the library), and every other code that the call was wrong or
/// failed: an own kernel in its place would hide that.
const REFUSALS: [u32; 8] = [3000, 3001, 3002, 3003, 3004, 3007, 3010, 3011];

/// The code by which the library would refuse a tensor of more elements than its numbers of 32 bits count, if it could be
/// told of one.
pub(super) const NOT_SUPPORTED: u32 = REFUSALS[0];

/// Whether an answer says that the library has nothing for what was asked.
pub(super) fn is_refusal(code: u32) -> bool {
    REFUSALS.contains(&code)
}

/// The codes of a call that was wrong. Asked for an algorithm that its heuristics did not list, the library answers with
/// them too where a convolution cannot be computed by it.
const WRONG_CALLS: RangeInclusive<u32> = 2000..=2012;

/// An algorithm that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unusable<Algorithm> {
    /// Which.
    pub(super) algorithm: Algorithm,
    /// What the library answered.
    pub(super) code: u32,
    /// Whether its heuristics had listed it.
    pub(super) is_listed: bool,
}

/// What it means that no algorithm can be used: a refusal where every answer is one, and otherwise the first other answer.
pub(super) fn verdict<Algorithm: Copy>(answers: &[Unusable<Algorithm>]) -> Result<u32, Unusable<Algorithm>> {
    let refuses = |answer: &Unusable<Algorithm>| {
        is_refusal(answer.code) || !answer.is_listed && WRONG_CALLS.contains(&answer.code)
    };
    match answers.iter().find(|answer| !refuses(answer)) {
        Some(other) => Err(*other),
        None => Ok(answers.iter().map(|answer| answer.code).rfind(|code| is_refusal(*code)).unwrap_or(REFUSALS[0])),
    }
}

#[cfg(test)]
mod tests {
    use cudarc::cudnn::sys::cudnnStatus_t;

    use super::*;

    /// Codes of the bindings, and whether each says that the library has nothing for what was asked.
    const CODES: [(cudnnStatus_t, bool); 22] = [
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_SHAPE, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_PADDING, true),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER, false),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART, false),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING, false),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE, false),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM, false),
        (cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API, false),
        (cudnnStatus_t::CUDNN_STATUS_BAD_PARAM, false),
        (cudnnStatus_t::CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, false),
        (cudnnStatus_t::CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, false),
        (cudnnStatus_t::CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, false),
        (cudnnStatus_t::CUDNN_STATUS_INVALID_VALUE, false),
        (cudnnStatus_t::CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED, false),
        (cudnnStatus_t::CUDNN_STATUS_INTERNAL_ERROR, false),
        (cudnnStatus_t::CUDNN_STATUS_EXECUTION_FAILED, false),
    ];

    #[test]
    fn a_wrong_call_and_a_broken_installation_are_no_refusals() {
        for (status, refuses) in CODES {
            assert_eq!(is_refusal(status as u32), refuses, "{status:?}");
        }
        let known = CODES.iter().filter(|(_, refuses)| *refuses).map(|(status, _)| *status as u32);
        assert!(
            known.eq((0..10_000).filter(|code| is_refusal(*code))),
            "a code without a name in the bindings refuses"
        );
    }

    #[test]
    fn a_convolution_is_refused_where_every_algorithm_is_and_the_first_other_answer_is_told() {
        let listed = |algorithm, code| Unusable { algorithm, code, is_listed: true };
        let other = |algorithm, code| Unusable { algorithm, code, is_listed: false };
        assert_eq!(verdict(&[listed("a", 3000), other("b", 3002)]), Ok(3002));
        assert_eq!(verdict::<&str>(&[]), Ok(3000));
        assert_eq!(verdict(&[other("a", 3000), other("b", 2003), other("c", 2000)]), Ok(3000), "not this one");
        let wrong = listed("b", 2003);
        assert_eq!(verdict(&[listed("a", 3000), wrong, other("c", 5000), other("d", 3000)]), Err(wrong));
        assert_eq!(verdict(&[other("b", 2003), other("c", 5000)]), Err(other("c", 5000)));
    }
}
