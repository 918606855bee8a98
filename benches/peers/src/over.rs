//! Throughput, and how much of a limit several limiters exceed that share it.

use tollgate_bench::{
    cases::over::{Promise, Systems},
    outcome::Outcome,
    plan::Plan,
};

use crate::peers::{throttle_kit, tower_rate_limit_redis, trypema};

pub(crate) async fn limit(plan: Plan) -> Vec<Outcome> {
    let mut systems = Systems::of_this_workspace(plan).await;
    let open = async |url: String, rule| tower_rate_limit_redis::Peer::open(&url, rule, 1).await;
    let name = "tower-rate-limit-redis";
    systems.add(name, Promise::Burst, open).await;
    let open = async |url: String, rule| throttle_kit::Peer::open(&url, rule, 1).await;
    systems.add("throttle-kit", Promise::Burst, open).await;
    let open = async |url: String, rule| trypema::Peer::open(&url, rule, 1).await;
    systems.add("trypema", Promise::AnySecond, open).await;
    let open = async |url: String, rule| trypema::Hybrid::open(&url, rule).await;
    systems
        .add("trypema, hybrid", Promise::AnySecond, open)
        .await;
    systems.measure().await
}
