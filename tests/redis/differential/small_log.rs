//! A sliding log whose blocks on Redis have three entries, so that a log of a few charges has many.

use std::sync::LazyLock;

use tollgate::strategy::{LuaScript, RuleInfo, Strategy};
use tollgate_tests::prelude::*;

use crate::strategies::Altered;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallLog;

static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let path = tollgate_tests::repository("src/strategy/window/sliding_log.lua");
    let script = fs::read_to_string(&path).expect("the script");
    let small = script.replace("block_len = 500", "block_len = 3");
    assert_ne!(small, script);
    small
});

impl Strategy for SmallLog {
    fn bind(&self, quota: &Quota, _terms: &Terms) -> Result<Arc<dyn Rule>, InvalidValue> {
        let rule = SlidingLog.bind(quota, &Terms::default())?;
        Ok(Arc::new(Altered::new(rule, |log| {
            let period = quota.period().as_micros() as i64;
            let parameters = [quota.amount() as i64, period];
            log.script = Some(LuaScript::new(&SCRIPT, parameters));
            log.info = RuleInfo::new("z1", quota.amount());
            log.info.stores_each_unit = true;
        })))
    }
}
