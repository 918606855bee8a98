//! A service with limits on Redis and an admin API, which the page belongs to.

use reqwest::Client;
use tollgate::admin::{Activity, Admin};
use tollgate_tests::{plain_http, prelude::*};

use crate::sockets::grpc::serve;

pub(crate) const TOKEN: &str = "a-token-of-the-operators";

/// Where the page is.
pub(crate) const PATHS: [&str; 4] = ["/admin", "/admin/", "/admin/?a=b#c", "/teams/7/limits"];

/// Requests an hour of each user.
pub(crate) const LIMIT: u64 = 5;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    layer: RateLimitLayer,
    client: Client,
    _server: Server,
}

/// By the header field `x-user`, [`LIMIT`] requests an hour; 3 would be the limit of the shadow policy.
fn policies() -> [Policy; 3] {
    let hourly = |name: &str, n| {
        let policy = Policy::new(name, Quota::requests(n).per_hour());
        policy.strategy(FixedWindow).key(extract::header("x-user"))
    };
    [
        hourly("pages", LIMIT),
        hourly("stricter", 3).shadow(),
        Policy::block_list("blocked").key(extract::header("x-user")),
    ]
}

impl Service {
    pub(crate) async fn start() -> Self {
        let server = Server::start();
        let store = RedisStore::builder().url(server.url());
        let store = store.rejection_cache_staleness(Duration::ZERO);
        let store = store.timeout(TEST_TIMEOUT).build();
        let builder = RateLimitLayer::builder().store(store.expect("a store"));
        let builder = policies()
            .into_iter()
            .fold(builder, |builder, policy| builder.policy(policy));
        let activity = Arc::new(Activity::new());
        let layer = builder.observe(activity.clone()).built();
        let admin = || {
            let admin = Admin::new(&layer).activity(activity.clone()).host("api-1");
            let admin = admin.token("operators", TOKEN).router();
            admin.expect("an admin API")
        };
        let app = Router::new().route("/", get(async || "hello"));
        let app = app.layer(layer.clone());
        let app = app.nest_service("/admin", admin());
        let app = app.nest("/teams/7/limits", admin());
        let uncounted = Admin::new(&layer).token("operators", TOKEN).router();
        let app = app.nest("/uncounted", uncounted.expect("an admin API"));
        Self {
            address: serve(app).await,
            layer,
            client: plain_http::client(),
            _server: server,
        }
    }

    /// The status of the response to a user's request.
    pub(crate) async fn get(&self, user: &str) -> u16 {
        let request = self.client.get(format!("http://{}/", self.address));
        let response = request.header("x-user", user).send().await;
        response.expect("a response").status().as_u16()
    }

    /// Sends so many requests of a user, and returns how many were admitted.
    pub(crate) async fn send(&self, user: &str, requests: u64) -> u64 {
        let mut admitted = 0;
        for _ in 0..requests {
            admitted += u64::from(self.get(user).await == 200);
        }
        admitted
    }

    /// The units that a user has left in the store.
    pub(crate) async fn remaining(&self, user: &str) -> u64 {
        let pages = self.layer.limiter().policy("pages").expect("a policy");
        let key = pages.key(user).expect("a key");
        let status = pages.peek(key).await.expect("a response");
        status.left("pages")
    }
}
