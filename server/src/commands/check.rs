//! `tollgate-server check`.

use std::fmt::{self, Write};

use clap::Args;

use super::Documents;
use crate::{
    document::{Mistakes, YamlText, counting},
    rules::{Rule, Rules},
};

/// Check documents, and print their rules and limits.
///
/// Exits with 2 and prints the mistakes if there are any.
#[derive(Clone, Debug, Args)]
pub struct Check {
    #[command(flatten)]
    documents: Documents,
}

impl Check {
    /// Returns the rules as text.
    ///
    /// # Errors
    ///
    /// The mistakes of the documents.
    pub fn run(&self) -> Result<String, Mistakes> {
        Ok(summary(&self.documents.load()?))
    }
}

/// Each domain with its rules, their limits, and the names under which these are counted.
fn summary(rules: &Rules) -> String {
    let mut text = String::new();
    for (domain, rules) in &rules.domains {
        let (mut rule_count, mut limit_count) = (0, 0);
        count(rules, &mut rule_count, &mut limit_count);
        // A `String` takes all that is written.
        let _ = writeln!(
            text,
            "domain {}: {rule_count} rules, {limit_count} limits",
            YamlText(domain)
        );
        let _ = list(&mut text, rules, 2);
    }
    text
}

fn count(rules: &[Rule], rule_count: &mut usize, limit_count: &mut usize) {
    for rule in rules {
        *rule_count += 1;
        *limit_count += rule.limits.len();
        count(&rule.descriptors, rule_count, limit_count);
    }
}

fn list(text: &mut String, rules: &[Rule], indent: usize) -> fmt::Result {
    for rule in rules {
        write!(text, "{:indent$}{}", "", YamlText(&rule.key))?;
        if let Some(value) = &rule.value {
            write!(text, " = {}", YamlText(value))?;
        }
        for (mode, is_set) in [
            ("shadow_mode", rule.shadow_mode),
            ("quota_mode", rule.quota_mode),
            ("detailed_metric", rule.detailed_metric),
            ("value_to_metric", rule.value_to_metric),
            ("share_threshold", rule.share_threshold),
            ("metadata", rule.metadata.is_some()),
        ] {
            if is_set {
                write!(text, ", {mode}")?;
            }
        }
        text.push('\n');
        for limit in &rule.limits {
            write!(text, "{:indent$}  limit", "")?;
            if let Some(name) = &limit.name {
                write!(text, " {}", YamlText(name))?;
            }
            match &limit.counted {
                None => text.push_str(": unlimited"),
                Some(counted) => {
                    write!(text, ": {}", counting(counted).join(", "))?;
                    write!(text, ", counted as {}", counted.policy.name())?;
                }
            }
            for name in &limit.replaces {
                write!(text, ", replaces {}", YamlText(name))?;
            }
            text.push('\n');
        }
        list(text, &rule.descriptors, indent + 2)?;
    }
    Ok(())
}
