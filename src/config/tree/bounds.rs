//! Bounds of what a text may hold, so that no document costs much memory or time.

use std::cell::Cell;

use crate::config::error::{Mistake, Position};

/// The most arrays and tables that a value is within.
pub(super) const MAX_DEPTH: usize = 64;

/// The most bytes of texts, and values, that a document has once YAML's aliases are replaced by what they stand for: four times
/// the largest file.
pub(super) const MAX_EXPANDED: usize = 4 << 20;

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
    left: Cell<usize>,
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
                format!("more than {MAX_EXPANDED} bytes and values, with aliases expanded"),
                format!("at most {MAX_EXPANDED}"),
            ),
        };
        Mistake::new("", found, expected).at(position)
    }
}

impl Bounds {
    pub(super) fn new() -> Self {
        Self {
            #[cfg(any(feature = "config-json", feature = "config-yaml"))]
            left: Cell::new(MAX_EXPANDED),
            exceeded: Cell::new(None),
        }
    }

    /// The bound that was exceeded.
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded.get()
    }

    /// Counts a value, or bytes of text.
    #[cfg(any(feature = "config-json", feature = "config-yaml"))]
    pub(super) fn count(&self, size: usize) -> Result<(), Exceeded> {
        match self.left.get().checked_sub(size) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(self.fail(Exceeded::Size)),
        }
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
