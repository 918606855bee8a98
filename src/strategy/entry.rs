//! What a strategy of this library says of itself to documents, to stores and to [`Changes`](crate::changes::Changes).

use std::{any::TypeId, sync::Arc};

use super::{Rule, Strategy};
use crate::{error::InvalidValue, scan::Scanner};

/// A strategy of this library.
pub(crate) struct BuiltIn {
    /// The shortest of its texts in documents: a name, and in capitals what has to follow it, such as `ban DURATION`.
    pub(crate) text: &'static str,
    /// Parses what follows its name.
    pub(crate) parse: fn(&mut Scanner<'_>) -> Result<Arc<dyn Strategy>, InvalidValue>,
    /// What may follow its name, in the words of a mistake.
    pub(crate) settings: &'static str,
    /// The type of its rules.
    pub(super) rule: fn() -> TypeId,
    /// That of its rules: a letter that no other strategy has, and a digit.
    pub(super) state_format: &'static str,
    pub(crate) counts: Counts,
}

/// What a mistake says may follow the name of a strategy without settings.
pub(crate) const NO_SETTINGS: &str = "nothing more: this strategy has no settings";

/// What becomes of a strategy's counts under another quota, or other settings of the strategy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts {
    /// They are the time until all units are back, and change with the quota.
    Time,
    /// They stay, as this text says.
    Kept(&'static str),
}

/// The counts of strategies that count units.
pub(crate) const UNITS: Counts = Counts::Kept("the count stays");

impl BuiltIn {
    /// A strategy without settings, whose rules are of type `R`.
    pub(super) const fn without_settings<S: Strategy + Default, R: Rule>(
        name: &'static str,
        state_format: &'static str,
        counts: Counts,
    ) -> Self {
        Self {
            text: name,
            parse: |_| Ok(Arc::new(S::default())),
            settings: NO_SETTINGS,
            rule: TypeId::of::<R>,
            state_format,
            counts,
        }
    }

    /// Its name in documents.
    pub(crate) fn name(&self) -> &'static str {
        self.text.split(' ').next().unwrap_or(self.text)
    }
}
