//! What the tests share.

use tollgate::strategy::{ErasedLocalRule, LuaScript, QuotaStatus, RuleInfo, Snapshot, Strategy};
use tollgate_tests::prelude::*;

pub(crate) use tollgate_tests::{
    stores::quota,
    world::START,
    world::{each, each_in, each_of, fresh_key, left, refund, send, send_concurrently},
};

/// The values of all keys, in the order of their names.
pub(crate) fn values(server: &Server) -> Vec<String> {
    let keys = server.keys().into_iter();
    let values = keys.map(|key| server.command(&["GET", &key]).text());
    values.collect()
}

/// Counts by the rule of another strategy, and says something else of itself.
#[derive(Clone, Debug)]
pub(crate) struct Altered {
    rule: Arc<dyn Rule>,
    pub(crate) info: RuleInfo,
    pub(crate) script: Option<LuaScript>,
}

impl Altered {
    /// A policy that is counted so.
    pub(crate) fn policy(
        name: &str,
        text: &str,
        strategy: impl Strategy,
        alter: impl FnOnce(&mut Self),
    ) -> Policy {
        let quota = quota(text);
        let rule = strategy.bind(&quota, &Terms::default()).expect("a rule");
        Policy::new(name, quota).strategy(Self::new(rule, alter))
    }

    pub(crate) fn new(rule: Arc<dyn Rule>, alter: impl FnOnce(&mut Self)) -> Self {
        let (info, script) = (rule.info(), rule.script());
        let mut altered = Self { rule, info, script };
        alter(&mut altered);
        altered
    }
}

impl Strategy for Altered {
    fn bind(&self, _quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        Ok(Arc::new(self.clone()))
    }
}

impl Rule for Altered {
    fn info(&self) -> RuleInfo {
        self.info
    }

    fn status(&self, snapshot: &Snapshot, now: Timestamp, cost: u64) -> QuotaStatus {
        self.rule.status(snapshot, now, cost)
    }

    fn script(&self) -> Option<LuaScript> {
        self.script.clone()
    }

    fn local_rule(&self) -> Option<ErasedLocalRule<'_>> {
        self.rule.local_rule()
    }
}
