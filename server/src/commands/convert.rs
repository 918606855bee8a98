//! `tollgate-server convert`.

use clap::Args;

use super::Documents;
use crate::document::{self, Mistakes};

/// Print documents in tollgate's format, with the same rules and counters.
///
/// It reads the reference format and tollgate's. Exits with 2 and prints the mistakes if there are any.
#[derive(Clone, Debug, Args)]
pub struct Convert {
    #[command(flatten)]
    documents: Documents,
}

impl Convert {
    /// Returns the documents in tollgate's format, one for each domain.
    ///
    /// # Errors
    ///
    /// The mistakes of the documents, and a text that would be too large to be read.
    pub fn run(&self) -> Result<String, Mistakes> {
        document::convert(&self.documents.load()?)
    }
}
