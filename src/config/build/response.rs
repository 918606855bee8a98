//! A layer's settings.

use super::{Build, listed};
use crate::{
    config::{Registry, tree::path::Path},
    error::ConfigError,
    headers::RateLimitHeaders,
    respond::LayerSettings,
};

impl Build<'_> {
    /// The settings of the layer, with code in their slot.
    pub(super) fn layer(&mut self) -> LayerSettings {
        let document = self.document;
        let root = Path::default();
        let mut on_rejection = document.on_rejection.clone();
        if on_rejection.is_some() && document.rejection.is_some() {
            let found = "a function together with the text of rejection";
            self.found(&root.key("on_rejection"), found, "one of them");
        } else {
            let path = root.key("on_rejection");
            self.fill(&path, &mut on_rejection, Registry::find_on_rejection);
        }
        if let Some(text) = &document.rejection {
            text.validate(&mut |invalid| self.found_by_builder(&ConfigError::at("", invalid)));
        }
        if let Some(headers) = &document.headers {
            self.check_headers(&root.key("headers"), headers);
        }
        LayerSettings {
            enabled: document.enabled,
            headers: document.headers.clone(),
            rejections: document.rejections,
            rejection: document.rejection.clone(),
            on_rejection,
            refund_handler_rejections: document.refund_handler_rejections,
            ..LayerSettings::default()
        }
    }

    /// Reports each policy that fields are to describe and don't, and a format of named policies without one.
    fn check_headers(&mut self, path: &Path, headers: &RateLimitHeaders) {
        let policies = &self.document.policies;
        let groups = headers.format.groups().len();
        let named = headers.named_policies();
        if groups > 0 && named.iter().all(|(_, policy)| policy.is_none()) {
            let expected =
                "the name of a policy, such as requests = \"api\" in a table with format";
            self.found(path, "fields of named policies without a name", expected);
        }
        for (index, (setting, policy)) in named.into_iter().enumerate() {
            let Some(policy) = policy else { continue };
            let path = path.key(setting);
            if index >= groups {
                let expected = match setting {
                    "requests" | "tokens" => "the format openai or anthropic",
                    _ => "the format anthropic",
                };
                let found = format!("the policy {policy:?}, for which the format has no fields");
                self.found(&path, found, expected);
            } else if policies.get(policy).is_none() {
                let names = policies.iter().map(|(name, _)| name);
                let expected = format!("one of the policies {}", listed(names));
                self.found(&path, format!("{policy:?}"), expected);
            }
        }
    }
}
