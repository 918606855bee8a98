//! Counts over time, in buckets whose width follows the length of the log.

/// The most buckets; with more, the width grows.
const MAX_BUCKETS: usize = 240;

/// The widths in seconds, each a multiple of the one before. After the last, the width doubles.
const WIDTHS: [i64; 12] = [
    1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400, 604_800, 2_419_200,
];

/// Counts of several kinds over time.
#[derive(Debug)]
pub(in crate::replay) struct Timeline {
    width_s: i64,
    /// When the first bucket begins, in seconds since the Unix epoch: a multiple of the width.
    start_s: i64,
    kinds: usize,
    /// The counts of all kinds, bucket by bucket.
    counts: Vec<u64>,
}

impl Timeline {
    pub(super) fn new(kinds: usize) -> Self {
        Self {
            width_s: WIDTHS[0],
            start_s: 0,
            kinds,
            counts: Vec::new(),
        }
    }

    /// The counts of the bucket of an instant, which is not before that of any other call.
    pub(super) fn at(&mut self, micros: i64) -> &mut [u64] {
        let second = micros.div_euclid(1_000_000);
        if self.counts.is_empty() {
            self.start_s = second;
        }
        let mut index = self.index(second);
        while index >= MAX_BUCKETS {
            self.widen();
            index = self.index(second);
        }
        let first = index * self.kinds;
        if self.counts.len() < first + self.kinds {
            self.counts.resize(first + self.kinds, 0);
        }
        &mut self.counts[first..first + self.kinds]
    }

    fn index(&self, second: i64) -> usize {
        let index = second.saturating_sub(self.start_s).div_euclid(self.width_s);
        usize::try_from(index).unwrap_or(0)
    }

    fn widen(&mut self) {
        let wider = WIDTHS.into_iter().find(|width| *width > self.width_s);
        let width_s = wider.unwrap_or(self.width_s * 2);
        let start_s = self.start_s.div_euclid(width_s) * width_s;
        let mut counts = Vec::new();
        for (index, bucket) in self.counts.chunks(self.kinds).enumerate() {
            let begins_s = self.start_s + index as i64 * self.width_s;
            let first = ((begins_s - start_s) / width_s) as usize * self.kinds;
            counts.resize(counts.len().max(first + self.kinds), 0);
            for (sum, count) in counts[first..].iter_mut().zip(bucket) {
                *sum += count;
            }
        }
        (self.width_s, self.start_s, self.counts) = (width_s, start_s, counts);
    }

    pub(in crate::replay) fn width_s(&self) -> i64 {
        self.width_s
    }

    /// When each bucket begins, in seconds since the Unix epoch, and its counts.
    pub(in crate::replay) fn buckets(&self) -> impl ExactSizeIterator<Item = (i64, &[u64])> {
        let buckets = self.counts.chunks(self.kinds).enumerate();
        buckets.map(|(index, counts)| (self.start_s + index as i64 * self.width_s, counts))
    }
}

/// The interval of a fixed length with the highest count.
#[derive(Clone, Copy, Debug)]
pub(in crate::replay) struct Peak {
    length_s: i64,
    /// The interval that is counted now.
    current: i64,
    count: u64,
    highest: i64,
    highest_count: u64,
}

impl Peak {
    pub(super) fn of_seconds(length_s: i64) -> Self {
        Self {
            length_s,
            current: i64::MIN,
            count: 0,
            highest: 0,
            highest_count: 0,
        }
    }

    /// Counts an instant, which is not before that of any other call.
    pub(super) fn add(&mut self, micros: i64) {
        let interval = micros.div_euclid(self.length_s * 1_000_000);
        if interval != self.current {
            (self.current, self.count) = (interval, 0);
        }
        self.count += 1;
        if self.count > self.highest_count {
            (self.highest, self.highest_count) = (self.current, self.count);
        }
    }

    /// When the interval begins, in microseconds since the Unix epoch, and its count; `None` if nothing was counted.
    pub(in crate::replay) fn highest(&self) -> Option<(i64, u64)> {
        let begins = self.highest * self.length_s * 1_000_000;
        (self.highest_count > 0).then_some((begins, self.highest_count))
    }
}
