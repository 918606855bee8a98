//! The settings of a policy, in the words of a configuration document.

use super::{Cost, Policy, QuotaSource};
use crate::{
    charge::ChargeTime,
    extract::{self, KeyExtractor, MissingKey},
    quota::DurationText,
    setting::{Setting, SettingValue},
    strategy::{Concurrency, Gcra, Strategy},
};

impl Policy {
    /// All settings but the name, always the same ones in the same order, so that two policies can be compared one by one.
    ///
    /// A setting of a [candidate](Policy::shadow_of) is a default only if it is not set, since a document without it has the
    /// live policy's.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let [strategy, key] = [self.strategy_setting(), self.key_setting()];
        let missing_key = self.setting(
            "missing_key",
            self.missing.map(missing_key_value),
            missing_key_value(self.extractor().on_missing_key()),
        );
        let cost = self.cost.as_ref().map(|cost| match cost {
            Cost::Fixed(units) => SettingValue::Number(*units),
            Cost::With(code) => code.value().clone(),
            #[cfg(feature = "config")]
            Cost::Rules(rules) => rules.value(),
        });
        let caller = self.caller.as_ref();
        let caller = caller.map(|caller| key_value(&**caller, caller.value()));
        let [tier, tiers, quota_with, quota_lookup] = self.quota_source_values();
        let tier_quotas = self.tier_quotas.iter().map(SettingValue::display);
        // Those of `tiers` are declared by it.
        let tier_quotas = tier_quotas.filter(|quota| match &tiers {
            SettingValue::Table(tiers) => tiers.iter().all(|(_, tier)| tier != quota),
            _ => true,
        });
        let tier_quotas = SettingValue::list(tier_quotas);
        let [skip, only] = self.skips.values();
        let shadow = self.shadow.as_ref();
        let live = shadow.and_then(|shadow| shadow.replaces.as_ref());
        let on_store_error = self.on_store_error.map(|action| action.value());
        let flag = |name, flag, default| {
            Setting::or_default(name, SettingValue::Flag(flag), &SettingValue::Flag(default))
        };
        let or_unset = |name, value| Setting::or_default(name, value, &SettingValue::Unset);
        vec![
            Setting {
                name: "quota",
                value: SettingValue::display(self.quota),
                is_default: self.block_list,
            },
            strategy,
            key,
            missing_key,
            self.setting("caller", caller, SettingValue::Unset),
            self.setting("cost", cost, SettingValue::Number(1)),
            Setting::or_default(
                "charge",
                self.charge_value(),
                &SettingValue::text("arrival"),
            ),
            flag("charge_rejected", self.charge.rejected, false),
            flag("charge_dropped", self.charge.dropped, true),
            or_unset("tier", tier),
            or_unset("tiers", tiers),
            or_unset("quota_with", quota_with),
            or_unset("quota_lookup", quota_lookup),
            Setting::or_default("tier_quotas", tier_quotas, &SettingValue::list([])),
            or_unset("skip", skip),
            or_unset("only", only),
            flag("shadow", shadow.is_some() && live.is_none(), false),
            or_unset(
                "shadow_of",
                live.map_or(SettingValue::Unset, |live| {
                    SettingValue::text(live.to_string())
                }),
            ),
            // Unless set, it is the limiter's.
            or_unset(
                "on_store_error",
                on_store_error.unwrap_or(SettingValue::Unset),
            ),
            or_unset("lease", self.lease_value()),
            flag("by_hand", self.by_hand, false),
            flag("block_list", self.block_list, false),
        ]
    }

    /// Whether all settings are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.settings() == other.settings()
    }

    /// Whether both count the same quotas by the same strategy.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        let counts = |policy: &Self| {
            let settings = policy.settings().into_iter();
            let counts = settings.filter(|setting| {
                matches!(
                    setting.name,
                    "quota" | "strategy" | "tiers" | "tier_quotas" | "lease"
                )
            });
            counts.map(|setting| setting.value).collect::<Vec<_>>()
        };
        counts(self) == counts(other)
    }

    fn strategy_setting(&self) -> Setting {
        let default = match self.quota.is_concurrent() {
            true => strategy_value(&Concurrency::new(), &SettingValue::Unset),
            false => strategy_value(&Gcra, &SettingValue::Unset),
        };
        let strategy = self.strategy.as_ref();
        let strategy = strategy.map(|strategy| strategy_value(&**strategy, strategy.value()));
        let mut setting = self.setting("strategy", strategy, default);
        if self.block_list {
            let ban = Self::block_list("");
            let ban = strategy_value(ban.strategy_or_default(), &SettingValue::Unset);
            setting.is_default = ban == setting.value;
        }
        setting
    }

    fn key_setting(&self) -> Setting {
        let default = key_value(&extract::peer(), &SettingValue::Unset);
        // A policy that is called by hand has no extractor.
        let key = self.extractor.as_ref().filter(|_| !self.by_hand);
        let key = key.map(|key| key_value(&**key, key.value()));
        self.setting("key", key, default)
    }

    fn charge_value(&self) -> SettingValue {
        let when = match self.charge.when {
            ChargeTime::Arrival => return SettingValue::text("arrival"),
            ChargeTime::Response => "after",
            ChargeTime::Reserve => "refund_unless",
        };
        let outcomes = self.charge.outcomes().map(|code| code.value().clone());
        SettingValue::table([(when, outcomes.unwrap_or(SettingValue::Unset))])
    }

    /// The values of `tier`, `tiers`, `quota_with` and `quota_lookup`, of which at most one way is set.
    fn quota_source_values(&self) -> [SettingValue; 4] {
        const UNSET: SettingValue = SettingValue::Unset;
        match &self.quota_source {
            QuotaSource::Policy => [UNSET; 4],
            QuotaSource::FromRequest(code) => match code.value() {
                SettingValue::Table(entries) => {
                    let entry = |name: &str| {
                        let mut entries = entries.iter();
                        let entry = entries.find(|(own, _)| own == name);
                        entry.map_or(UNSET, |(_, value)| value.clone())
                    };
                    [entry("tier"), entry("tiers"), UNSET, UNSET]
                }
                value => [UNSET, UNSET, value.clone(), UNSET],
            },
            QuotaSource::Lookup(code, timeout) => {
                let timeout = SettingValue::display(DurationText(*timeout));
                let entries = [("name", code.value().clone()), ("timeout", timeout)];
                [UNSET, UNSET, UNSET, SettingValue::table(entries)]
            }
        }
    }

    /// A setting that a candidate inherits from its live policy unless it is set.
    fn setting(
        &self,
        name: &'static str,
        value: Option<SettingValue>,
        default: SettingValue,
    ) -> Setting {
        let inherits = self
            .shadow
            .as_ref()
            .is_some_and(|shadow| shadow.replaces.is_some());
        match value {
            Some(value) => Setting {
                name,
                is_default: value == default && !inherits,
                value,
            },
            None => Setting::or_default(name, default.clone(), &default),
        }
    }
}

fn strategy_value(strategy: &dyn Strategy, code: &SettingValue) -> SettingValue {
    SettingValue::text_or(strategy.config_text(), code)
}

fn key_value(extractor: &dyn KeyExtractor, code: &SettingValue) -> SettingValue {
    SettingValue::text_or(extractor.config_text(), code)
}

fn missing_key_value(missing: MissingKey) -> SettingValue {
    SettingValue::text(match missing {
        MissingKey::Skip => "skip",
        MissingKey::Reject => "reject",
        MissingKey::Shared => "shared",
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;

    use super::*;
    use crate::{Ban, LocalFallback, Quota, TokenBucket, outcome};

    fn policy() -> Policy {
        Policy::new("api", Quota::requests(10).per_minute())
    }

    /// The settings that are no defaults, as text.
    fn settings(policy: &Policy) -> Vec<String> {
        let settings = policy.settings().into_iter();
        let settings = settings.filter(|setting| !setting.is_default);
        settings
            .map(|setting| format!("{} = {}", setting.name, setting.value))
            .collect()
    }

    #[test]
    fn a_policy_without_settings_has_a_quota_alone() {
        assert_eq!(settings(&policy()), ["quota = 10/min"]);
        let explicit = policy()
            .strategy(Gcra)
            .key(extract::peer())
            .missing_key(MissingKey::Shared)
            .cost(1);
        assert_eq!(settings(&explicit), ["quota = 10/min"]);
        assert_eq!(
            settings(&Policy::block_list("locked").by_hand()),
            ["by_hand = true", "block_list = true"]
        );
    }

    #[test]
    fn each_setting_has_the_words_of_a_document() {
        let policy = policy()
            .strategy(TokenBucket)
            .key((
                extract::header("x-tenant"),
                extract::bearer().or_else(extract::peer()),
            ))
            .missing_key(MissingKey::Skip)
            .caller(extract::cookie("lang").readable())
            .cost(5)
            .refund_unless(outcome::success)
            .charge_rejected(true)
            .charge_dropped(false)
            .quota_lookup(Duration::from_millis(50), |_| async { None })
            .tier_quotas([Quota::requests(100).per_minute()])
            .skip_path("/health")
            .skip_with(|_| false)
            .only_method(Method::POST)
            .shadow_of("live")
            .on_store_error(LocalFallback::shared_by(4).write_back(true));
        assert_eq!(
            settings(&policy),
            [
                "quota = 10/min",
                "strategy = token_bucket",
                "key = [header:x-tenant, bearer | peer]",
                "missing_key = skip",
                "caller = cookie:lang readable",
                "cost = 5",
                "charge = { refund_unless = success }",
                "charge_rejected = true",
                "charge_dropped = false",
                "quota_lookup = { name = code, timeout = 50ms }",
                "tier_quotas = [100/min]",
                "skip = { paths = [/health], with = [code] }",
                "only = { methods = [POST] }",
                "shadow_of = live",
                "on_store_error = { local_fallback = { processes = 4, write_back = true } }",
            ]
        );
    }

    #[test]
    fn what_a_candidate_sets_is_no_default_since_it_would_inherit_it() {
        let candidate = policy().strategy(Gcra).shadow_of("live");
        let expected = ["quota = 10/min", "strategy = gcra", "shadow_of = live"];
        assert_eq!(settings(&candidate), expected);
    }

    #[test]
    fn code_is_equal_if_it_is_one_function_or_one_value() {
        let build = |units: u64| {
            let cost = move |_: &http::request::Parts| units;
            policy().cost_with(cost).quota_with(|_| None)
        };
        let (one, another) = (build(1), build(1));
        assert_eq!(one.settings(), one.clone().settings());
        let differs = |(a, b): &(Setting, Setting)| a != b;
        let pairs = one.settings().into_iter().zip(another.settings());
        let different: Vec<_> = pairs
            .filter(differs)
            .map(|(setting, _)| setting.name)
            .collect();
        assert_eq!(different, ["cost"]);
    }

    #[test]
    fn a_ban_names_its_durations() {
        let ban =
            Ban::for_duration(Duration::from_secs(600)).max_duration(Duration::from_secs(5_400));
        let expected = ["quota = 10/min", "strategy = ban 10min max 90min"];
        assert_eq!(settings(&policy().strategy(ban)), expected);
    }
}
