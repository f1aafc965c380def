//! How similar two machines are.

/// What share the smaller of two numbers above 0 is of the larger.
pub fn ratio(one: f64, other: f64) -> f64 {
    one.min(other) / one.max(other)
}

/// The similarity of two machines by their features, in the same order: 1 for equal ones, towards 0 the more
/// they differ. It is eq. 2 of Kratzke and Quint 2016: 1 less the mean of the squares of what each [`ratio`]
/// lacks to 1. It knows no units, nor whether more or less of a feature is better. `sqrt(1 - s)` is a metric.
///
/// `None` where there is nothing to compare: lengths that differ or are 0, a feature that is not above 0.
pub fn similarity(one: &[f64], other: &[f64]) -> Option<f64> {
    let is_feature = |value: &f64| value.is_finite() && *value > 0.0;
    let is_comparable = one.len() == other.len() && !one.is_empty();
    if !is_comparable || !one.iter().chain(other).all(is_feature) {
        return None;
    }
    let lacks = one.iter().zip(other).map(|(one, other)| (1.0 - ratio(*one, *other)).powi(2));
    Some(1.0 - lacks.sum::<f64>() / one.len() as f64)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const ROUNDING: f64 = 1e-12;

    /// By hand: of one half and of one quarter.
    #[test]
    fn as_computed_by_hand() {
        assert_eq!(similarity(&[1.0], &[2.0]), Some(0.75));
        assert_eq!(similarity(&[4.0], &[1.0]), Some(1.0 - 0.5625));
        // 1 - (0 + 1/4 + 9/16) / 3
        let three = similarity(&[3.0, 1.0, 8.0], &[3.0, 2.0, 2.0]).unwrap();
        assert!((three - (1.0 - 0.8125 / 3.0)).abs() < ROUNDING, "{three}");
        // Six of seven features alike, and the seventh all but gone: 6/7.
        let seventh = similarity(&[1.0; 7], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1e-15]).unwrap();
        assert!((seventh - 6.0 / 7.0).abs() < ROUNDING, "{seventh}");
    }

    #[test]
    fn what_cannot_be_compared_has_no_similarity() {
        for (one, other) in [
            (&[][..], &[][..]),
            (&[1.0], &[1.0, 2.0]),
            (&[0.0], &[0.0]),
            (&[1.0], &[0.0]),
            (&[-1.0], &[1.0]),
            (&[f64::NAN], &[1.0]),
            (&[f64::INFINITY], &[f64::INFINITY]),
        ] {
            assert_eq!(similarity(one, other), None, "{one:?} {other:?}");
        }
    }

    fn feature() -> impl Strategy<Value = f64> {
        (-6.0..9.0f64).prop_map(|power| 10f64.powf(power))
    }

    /// Three machines with the same features.
    fn machines() -> impl Strategy<Value = [Vec<f64>; 3]> {
        (1..12usize)
            .prop_flat_map(|count| [vec(feature(), count), vec(feature(), count), vec(feature(), count)])
    }

    proptest! {
        #[test]
        fn symmetric_within_bounds_and_1_with_itself([a, b, _] in machines()) {
            let s = similarity(&a, &b).unwrap();
            prop_assert_eq!(similarity(&b, &a).unwrap(), s);
            prop_assert!((0.0..=1.0).contains(&s));
            prop_assert_eq!(similarity(&a, &a).unwrap(), 1.0);
        }

        /// A unit, or a time in place of a rate, must not matter.
        #[test]
        fn units_and_reciprocals_do_not_matter([a, b, units] in machines(), inverted: u16) {
            let s = similarity(&a, &b).unwrap();
            let scaled = |v: &[f64]| v.iter().zip(&units).map(|(v, unit)| v * unit).collect::<Vec<_>>();
            prop_assert!((similarity(&scaled(&a), &scaled(&b)).unwrap() - s).abs() < ROUNDING);
            let is_inverted = |at: usize| inverted >> at & 1 == 1;
            let turned = |v: &[f64]| {
                let turn = |(at, v): (usize, &f64)| if is_inverted(at) { v.recip() } else { *v };
                v.iter().enumerate().map(turn).collect::<Vec<_>>()
            };
            prop_assert!((similarity(&turned(&a), &turned(&b)).unwrap() - s).abs() < ROUNDING);
        }

        #[test]
        fn the_root_of_what_lacks_is_a_metric([a, b, c] in machines()) {
            let distance = |a: &[f64], b: &[f64]| (1.0 - similarity(a, b).unwrap()).sqrt();
            prop_assert!(distance(&a, &c) <= distance(&a, &b) + distance(&b, &c) + ROUNDING);
            prop_assert!(a == b || distance(&a, &b) > 0.0);
        }

        /// A machine that is changed further in one feature is less similar.
        #[test]
        fn further_is_less_similar([a, _, _] in machines(), more in 1.01..10.0f64, at: prop::sample::Index) {
            let at = at.index(a.len());
            let times = |factor: f64| {
                let mut changed = a.clone();
                changed[at] *= factor;
                changed
            };
            let s = |factor| similarity(&a, &times(factor)).unwrap();
            prop_assert!(s(more * more) < s(more) && s(more) < 1.0);
        }
    }
}
