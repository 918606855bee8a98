//! Conditions on requests.

use http::Method;

use super::Build;
use crate::{
    config::{document::conditions::ConditionsSection, tree::path::Path},
    error::InvalidValue,
    policy::skip::SkipRules,
};

impl Build<'_> {
    /// The conditions of the table at `path`, or of the document.
    pub(super) fn conditions(
        &mut self,
        path: &Path,
        skip: &ConditionsSection,
        only: &ConditionsSection,
    ) -> SkipRules {
        let mut rules = SkipRules::default();
        for (name, section) in [("skip", skip), ("only", only)] {
            let skips = name == "skip";
            let path = path.key(name);
            for text in &section.paths {
                match skips {
                    true => rules.add_path(text),
                    false => rules.only_path(text),
                }
            }
            for (index, text) in section.methods.iter().enumerate() {
                let path = path.key("methods").index(index);
                match self.value(&path, method(text)) {
                    Some(method) if skips => rules.add_method(method),
                    Some(method) => rules.only_method(method),
                    None => {}
                }
            }
            for (index, name) in section.with.iter().enumerate() {
                let path = path.key("with").index(index);
                let condition = self.registry.find_condition(name);
                match self.value(&path, condition) {
                    Some(condition) if skips => rules.add_code(condition),
                    Some(condition) => rules.only_code(condition),
                    None => {}
                }
            }
        }
        rules
    }
}

/// A method, in upper case if it is one of HTTP's.
pub(super) fn method(text: &str) -> Result<Method, InvalidValue> {
    let expected = || InvalidValue::new(format!("the method {text:?}"), "a method such as \"GET\"");
    let method = Method::from_bytes(text.as_bytes()).map_err(|_| expected())?;
    match text == text.to_ascii_uppercase() {
        true => Ok(method),
        false => Err(InvalidValue::new(
            format!("the method {text:?}"),
            format!("{:?}, in upper case", text.to_ascii_uppercase()),
        )),
    }
}
