//! The settings of a limiter beside its policies, in the words of a configuration document.

use super::LimiterCore;
use crate::{
    access::Lists,
    policy::on_store_error::{OnMisconfiguration, OnStoreError},
    setting::{Setting, SettingValue},
};

impl LimiterCore {
    /// Always the same settings in the same order, so that those of two limiters can be compared one by one.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let misconfiguration = |action| {
            SettingValue::text(match action {
                OnMisconfiguration::Reject => "reject",
                OnMisconfiguration::AsStoreError => "as_store_error",
            })
        };
        let [skip, only] = self.skips.values();
        let lists = self.lists.as_deref();
        let lists = lists.map_or_else(|| Lists::default().settings(), Lists::settings);
        let mut settings = vec![
            Setting::or_default(
                "on_store_error",
                // Unset, it differs for outgoing calls.
                self.on_store_error
                    .map_or(SettingValue::Unset, OnStoreError::value),
                &SettingValue::Unset,
            ),
            Setting::or_default(
                "on_misconfiguration",
                misconfiguration(self.on_misconfiguration),
                &misconfiguration(OnMisconfiguration::default()),
            ),
            Setting::or_default(
                "count_preflights",
                SettingValue::Flag(self.counts_preflights),
                &SettingValue::Flag(false),
            ),
            Setting::or_default("skip", skip, &SettingValue::Unset),
            Setting::or_default("only", only, &SettingValue::Unset),
        ];
        settings.extend(lists);
        #[cfg(feature = "config")]
        for (name, section) in ["client_ip", "bearer"]
            .into_iter()
            .zip(&self.shared_by_keys)
        {
            settings.push(Setting::or_default(
                name,
                section.clone(),
                &SettingValue::Unset,
            ));
        }
        settings
    }
}
