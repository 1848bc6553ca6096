//! Values of a view in row-major order, and walks over their indices.

/// Values with their sizes, outermost dimension first, row-major.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dense {
    pub(super) sizes: Vec<usize>,
    pub(super) values: Vec<f64>,
}

impl Dense {
    /// One value for each index.
    pub(super) fn from_fn(sizes: &[usize], mut value: impl FnMut(&[usize]) -> f64) -> Self {
        let mut values = Vec::with_capacity(sizes.iter().product());
        for_each_index(sizes, |index| values.push(value(index)));
        Self { sizes: sizes.to_vec(), values }
    }

    /// The value at an index.
    pub(super) fn at(&self, index: &[usize]) -> f64 {
        self.values[self.place(index)]
    }

    /// Size of the last dimension; 1 where there is none.
    pub(super) fn last(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// Where an index lies in the row-major order.
    fn place(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.sizes).fold(0, |place, (index, size)| place * size + index)
    }

    /// The value that stands at an index of larger sizes when this is broadcast to them.
    pub(super) fn broadcast_at(&self, index: &[usize]) -> f64 {
        let missing = index.len() - self.sizes.len();
        let own = index[missing..].iter().zip(&self.sizes);
        let place = own.fold(0, |place, (index, size)| place * size + if *size == 1 { 0 } else { *index });
        self.values[place]
    }
}

/// Visits every index of these sizes, in row-major order.
pub(super) fn for_each_index(sizes: &[usize], mut visit: impl FnMut(&[usize])) {
    let mut index = vec![0; sizes.len()];
    for _ in 0..sizes.iter().product() {
        visit(&index);
        for dimension in (0..sizes.len()).rev() {
            index[dimension] += 1;
            if index[dimension] < sizes[dimension] {
                break;
            }
            index[dimension] = 0;
        }
    }
}
