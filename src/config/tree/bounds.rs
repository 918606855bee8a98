//! Bounds of what a text may hold, so that no document costs much memory or time.

use std::cell::Cell;

use crate::config::error::{Mistake, Position};

/// The most arrays and tables that a value is within.
pub(super) const MAX_DEPTH: usize = 64;

/// The most bytes of texts that a document has once YAML's aliases are replaced by what they stand for: four times the largest
/// file.
pub(super) const MAX_EXPANDED: usize = 4 << 20;

/// The most values that it has then: the largest file without aliases has half as many.
#[cfg(any(feature = "config-json", feature = "config-yaml"))]
const MAX_VALUES: usize = 1 << 20;

/// A bound that a text exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    Depth,
    Size,
}

/// What is left of the bounds while a text is read.
#[derive(Debug)]
pub(super) struct Bounds {
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    bytes_left: Cell<usize>,
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    values_left: Cell<usize>,
    exceeded: Cell<Option<Exceeded>>,
}

impl Exceeded {
    pub(super) fn mistake(self, position: Option<Position>) -> Mistake {
        let (found, expected) = match self {
            Self::Depth => (
                format!("arrays and tables within each other, more than {MAX_DEPTH} levels"),
                format!("at most {MAX_DEPTH} levels"),
            ),
            Self::Size => (
                "more than 4 MiB of text or 2^20 values, with aliases expanded".to_owned(),
                "a smaller document".to_owned(),
            ),
        };
        Mistake::new("", found, expected).at(position)
    }
}

impl Bounds {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(any(feature = "config-json", feature = "config-yaml"))]
            bytes_left: Cell::new(MAX_EXPANDED),
            #[cfg(any(feature = "config-json", feature = "config-yaml"))]
            values_left: Cell::new(MAX_VALUES),
            exceeded: Cell::new(None),
        }
    }

    /// The bound that was exceeded.
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded.get()
    }

    /// Counts a value.
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    pub(super) fn count_value(&self) -> Result<(), Exceeded> {
        self.count(&self.values_left, 1)
    }

    /// Counts bytes of text.
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    pub(super) fn count_bytes(&self, bytes: usize) -> Result<(), Exceeded> {
        self.count(&self.bytes_left, bytes)
    }

    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    fn count(&self, left: &Cell<usize>, size: usize) -> Result<(), Exceeded> {
        let after = left.get().checked_sub(size);
        left.set(after.ok_or_else(|| self.fail(Exceeded::Size))?);
        Ok(())
    }

    /// The level of the values within a value of `level`.
    pub(super) fn level_within(&self, level: usize) -> Result<usize, Exceeded> {
        match level < MAX_DEPTH {
            true => Ok(level + 1),
            false => Err(self.fail(Exceeded::Depth)),
        }
    }

    fn fail(&self, exceeded: Exceeded) -> Exceeded {
        self.exceeded.set(Some(exceeded));
        exceeded
    }
}
