//! What `Changes` says of bans, and of the counts of policies that are removed, is what happens to them. What becomes of the
//! counts under other quotas is tested by `changed_quotas` and `changed_policies`.

use tollgate::changes::PolicyChangeKind;
use tollgate_tests::prelude::*;

use super::support::*;

#[tokio::test]
async fn a_ban_and_its_counted_rejections_stay_and_the_next_ban_follows_the_new_settings() {
    for world in World::both() {
        world.set(START);
        let policies = |quota: &str, ban: u64| {
            let ban = Ban::for_duration(secs(ban)).max_duration(secs(ban));
            let daily = StrategyKind::Fixed.policy("daily", "1/day");
            let abuse = Policy::new("abuse", super::support::quota(quota));
            [daily, abuse.strategy(ban)]
        };
        let limiter = world.limiter(policies("3/min", 600));
        let reconfigure = |quota: &str, ban: u64| {
            let policies = policies(quota, ban).into_iter();
            let builder = policies.fold(Limiter::builder(), LimiterBuilder::policy);
            let changes = limiter.reconfigure(builder).expect("valid policies");
            let counts = changes.policy("abuse").expect("a policy").counts();
            let stay =
                "counted rejections and bans stay, and the next ban follows the new settings";
            assert_eq!(counts, Some(stay));
        };
        let key = fresh_key();
        let banned_for = async || {
            let seen = limiter.peek(key).await.expect("a response");
            let wait = seen.count("abuse").retry_after().duration();
            (seen.left("abuse"), wait.expect("a wait"))
        };
        // One request is admitted, two are rejected.
        assert_eq!(send(&limiter, key, 3).await, 1);
        reconfigure("5/min", 600);
        assert_eq!(banned_for().await, (3, secs(0)));
        assert_eq!(send(&limiter, key, 3).await, 0);
        assert_eq!(banned_for().await.1, secs(600));
        reconfigure("1/min", 60);
        assert_eq!(banned_for().await.1, secs(600));
        world.advance(secs(600));
        assert_eq!(send(&limiter, key, 1).await, 0);
        assert_eq!(banned_for().await.1, secs(60));
    }
}

#[tokio::test]
async fn the_counts_of_a_removed_policy_count_again_until_they_expire() {
    each("5/h", async |scene| {
        let removed = scene.strategy.policy("p", "5/h");
        let kept = scene.strategy.policy("kept", "9/h");
        let limiter = scene.world.limiter([kept.clone(), removed.clone()]);
        let reconfigure = |builder| {
            let changes = limiter.reconfigure(builder).expect("valid policies");
            let p = changes.policy("p").expect("a policy");
            (p.kind(), p.counts().map(str::to_owned))
        };
        assert_eq!(send(&limiter, scene.key, 3).await, 3);
        let (kind, counts) = reconfigure(Limiter::builder().policy(kept.clone()));
        assert_eq!(kind, PolicyChangeKind::Removed);
        assert_eq!(counts.as_deref(), Some("its counts expire by themselves"));
        let (kind, _) = reconfigure(Limiter::builder().policy(removed).policy(kept));
        assert_eq!(kind, PolicyChangeKind::Added);
        assert_eq!(left(&limiter, scene.key).await, 2);
        scene.world.advance(secs(2 * 3_600));
        assert_eq!(left(&limiter, scene.key).await, 5);
    })
    .await;
}
