//! Services with the admin API, on one Redis.

use std::{net::TcpListener, process::Command, sync::Arc, time::Duration};

use axum::{Router, routing::get};
use testkit::{Server, TempDir};
use tokio::runtime::Runtime;
use tollgate::{
    Key, Limiter, RateLimitLayer, RedisStore,
    admin::{Activity, Admin},
    config::{Document, Format, Registry},
};

use crate::program::{Run, TEST_TIMEOUT, command, run, write};

/// The token of the admin API.
pub(crate) const TOKEN: &str = "token-of-the-tests";

/// The API key of the caller that is limited.
pub(crate) const API_KEY: &str = "sk_live_5f1c";

/// How old the cached rejections of services can be.
const STALENESS: Duration = Duration::from_millis(300);

/// A Redis, and a configuration file of services on it.
pub(crate) struct World {
    pub(crate) redis: Server,
    pub(crate) file: String,
    _folder: TempDir,
}

/// A service: a limiter of its own, and its admin API on a socket.
pub(crate) struct Service {
    pub(crate) url: String,
    limiter: Limiter,
    runtime: Runtime,
}

/// The configuration of services on the Redis of this port: three requests a day for each API key.
fn document(port: u16) -> String {
    format!(
        "[store]\nurl = 'redis://127.0.0.1:{port}'\ntimeout = '300s'\n\
         [policies.api]\nquota = '3/day'\nkey = 'header:x-api-key'\n\
         [policies.next]\nquota = '2/day'\nkey = 'header:x-api-key'\nshadow = true\n\
         [policies.blocked]\nblock_list = true\nkey = 'header:x-api-key'\n"
    )
}

impl World {
    pub(crate) fn start() -> Self {
        Self::with(document)
    }

    /// With a configuration of its own, made of the port of the Redis.
    pub(crate) fn with(document: impl Fn(u16) -> String) -> Self {
        let redis = Server::start();
        let folder = testkit::folder();
        let file = write(folder.path(), "limits.toml", &document(redis.port()));
        Self {
            redis,
            file,
            _folder: folder,
        }
    }

    /// A service on this Redis.
    pub(crate) fn service(&self) -> Service {
        Service::start(self.redis.port())
    }

    /// Runs the program directly on the store.
    pub(crate) fn direct(&self, arguments: &[&str]) -> Run {
        let mut command = command(arguments);
        command.args(["--config", &self.file]);
        run(command)
    }
}

impl Service {
    /// A service on the Redis of this port.
    fn start(port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let document = Document::parse(&document(port), Format::Toml).expect("a document");
        let store = RedisStore::builder()
            .url(format!("redis://127.0.0.1:{port}"))
            .timeout(TEST_TIMEOUT)
            .rejection_cache_staleness(STALENESS)
            .build()
            .expect("a store");
        let activity = Arc::new(Activity::new());
        let builder = document.builder(&Registry::new()).expect("a builder");
        let limiter = builder.store(store).observe(activity.clone()).build();
        let limiter = limiter.expect("a limiter");
        let admin = Admin::new(&limiter).activity(activity);
        let admin = admin.token("ops", TOKEN).router();
        let app = Router::new()
            .route("/", get(async || "hello"))
            .layer(RateLimitLayer::new(limiter.clone()))
            .nest("/admin", admin.expect("a router"));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        runtime.spawn(async { axum::serve(listener, app).await });
        drop(guard);
        Self {
            url: format!("http://{address}/admin"),
            limiter,
            runtime,
        }
    }

    /// Whether a request with the API key is admitted.
    pub(crate) fn admits(&self) -> bool {
        let check = self.limiter.admit(Key::secret(API_KEY));
        self.runtime.block_on(async { check.await.is_ok() })
    }

    /// The program, which calls this service with its token.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        admin_command(&self.url, arguments)
    }

    /// Runs the program, which calls this service with its token.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        run(self.command(arguments))
    }
}

/// The program, which calls the admin API at this URL with the token.
pub(crate) fn admin_command(url: &str, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.args(["--admin", url]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN);
    command
}
