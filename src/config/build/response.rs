//! A layer's settings.

use super::Build;
use crate::{
    config::{Registry, tree::path::Path},
    error::ConfigError,
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
        LayerSettings {
            enabled: document.enabled,
            headers: document.headers,
            rejection: document.rejection.clone(),
            on_rejection,
            refund_handler_rejections: document.refund_handler_rejections,
            ..LayerSettings::default()
        }
    }
}
