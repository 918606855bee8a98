//! Tiers with names, of which a function that a configuration document names returns one for each request.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use http::request::Parts;

use super::Policy;
use crate::{
    quota::Quota,
    setting::{Code, SettingValue},
};

/// Returns the name of a request's tier.
pub(crate) type TierFn = dyn Fn(&Parts) -> Option<Cow<'static, str>> + Send + Sync;

impl Policy {
    /// Sets the quota of each request to that of the tier whose name `tier` returns for its head, and declares these quotas.
    /// Without a tier of that name the policy's own quota applies.
    pub(crate) fn tiers_from(self, tier: Code<TierFn>, tiers: Vec<(String, Quota)>) -> Self {
        let quotas: Vec<_> = tiers.iter().map(|(_, quota)| *quota).collect();
        let texts = tiers.iter();
        let texts = texts.map(|(name, quota)| (name.clone(), SettingValue::display(quota)));
        let value = SettingValue::table([
            ("tier", tier.value().clone()),
            ("tiers", SettingValue::table(texts)),
        ]);
        let tiers: HashMap<_, _> = tiers.into_iter().collect();
        let find = move |parts: &Parts| tiers.get(&*tier(parts)?).copied();
        self.tier_quotas(quotas)
            .quota_from(Code::described(Arc::new(find), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_quota_of_its_tier_or_else_the_policys_own() {
        let tier = |parts: &Parts| {
            let tier = parts.headers.get("x-tier")?.to_str().ok()?;
            Some(Cow::Owned(tier.to_owned()))
        };
        let tier = Code::<TierFn>::described(Arc::new(tier), SettingValue::text("plan"));
        let tiers = [("free", "10/min"), ("pro", "100/min")]
            .map(|(name, quota)| (name.to_owned(), quota.parse().expect(quota)));
        let policy = Policy::new("api", Quota::requests(5).per_minute())
            .tiers_from(tier, tiers.to_vec())
            .tier_quotas([Quota::requests(7).per_minute()]);
        let super::super::QuotaSource::FromRequest(find) = policy.quota_source() else {
            panic!("no function");
        };
        let quota_of = |tier: &str| {
            let request = http::Request::get("/").header("x-tier", tier).body(());
            let quota = find(&request.expect("a request").into_parts().0);
            quota.map(|quota| quota.to_string())
        };
        assert_eq!(quota_of("pro").as_deref(), Some("100/min"));
        assert_eq!(quota_of("gold"), None);
        let settings = policy.settings();
        let value = |name| {
            let mut settings = settings.iter();
            let setting = settings.find(|setting| setting.name == name);
            setting.expect(name).value.to_string()
        };
        assert_eq!(value("tier"), "plan");
        assert_eq!(value("tiers"), "{ free = 10/min, pro = 100/min }");
        assert_eq!(value("quota_with"), "none");
        assert_eq!(value("tier_quotas"), "[7/min]");
    }
}
