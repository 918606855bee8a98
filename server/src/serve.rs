//! The server: its ports, and its end.

use std::{
    fs,
    future::Future,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::metrics::Recorder;
use axum::Router;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{interval, sleep, timeout},
};
use tollgate::{
    RedisStore,
    admin::{Activity, Admin},
    metrics::Metrics,
};
use tonic_health::{ServingStatus, server::HealthReporter};
use tracing::warn;

use crate::{
    engine::{Engine, EngineSettings},
    grpc,
    options::Options,
    port::{self, Port},
    proto,
    rules::Rules,
    tls::Certificates,
    web::Web,
};

/// The services that health checks may name: all of them, the reference server's name, and the service's own.
const HEALTH_SERVICES: [&str; 3] = ["", "ratelimit", proto::SERVICE];

/// How often an idle connection is tried, so that those of clients that are gone are closed.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// The largest request, in gRPC or JSON. An Envoy passes on up to 60 KiB of header fields, and more than one descriptor may have them: a
/// request that is too large is not limited, as Envoy admits what can't be decided.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The most requests at once on a connection of gRPC, whose messages are in memory before they are counted by `--max-requests`. While Redis
/// is waited for up to its timeout of 15 ms, these are 68,000 requests a second; an Envoy then opens another connection.
const MAX_STREAMS: u32 = 1_024;

/// How long a request of gRPC may take to be received, beside what Redis may take: from its head to its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long charges that are queued may take to be sent at the end.
const STORE_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A running server. Dropping it closes all ports.
#[derive(Debug)]
pub struct Server {
    engine: Engine,
    grpc: SocketAddr,
    http: SocketAddr,
    admin: Option<SocketAddr>,
    health: HealthReporter,
    healthy: Arc<AtomicBool>,
    /// Closes the ports.
    close: watch::Sender<bool>,
    /// What its certificates are reloaded by, until it is taken.
    certificates: Option<Certificates>,
    tasks: JoinSet<Result<(), BoxError>>,
    drain_delay: Duration,
    drain_timeout: Duration,
}

/// Why the server can't be started, or has ended.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Server {
    /// Starts the server with these rules. The documents of `options` are not read.
    ///
    /// # Errors
    ///
    /// If the rules or options are invalid, a file can't be read, or a port is taken. Redis need not be there.
    pub async fn start(options: &Options, rules: &Rules) -> Result<Self, BoxError> {
        let (recorder, prometheus) = recorder()?;
        let metrics = Arc::new(Metrics::with_recorder("ratelimit", recorder.clone()));
        let activity = Arc::new(Activity::new());
        let settings = EngineSettings {
            on_error: options.on_error,
            shadow_mode: options.shadow_mode,
            quota_mode: options.quota_mode,
            response_details: !options.no_response_details,
            dynamic_metadata: options.dynamic_metadata,
            near_percent: options.near_limit_percent,
            max_requests: options.max_requests as usize,
            recorder: Some(recorder),
            observers: vec![metrics.clone(), activity.clone()],
        };
        let engine = Engine::new(rules, store(options)?, settings)?;
        let admin = admin(options, &engine, activity)?;

        let routes = grpc::routes(engine.clone(), &options.credit_name)?;
        let certificates = Certificates::read(options)?;
        let open = |name, address| Port::open(name, address, options.max_connections);
        let grpc = open("gRPC", options.grpc).await?;
        let http = open("HTTP", options.http).await?;
        let admin = match admin {
            Some(router) => Some((open("the admin API", options.admin).await?, router)),
            None => None,
        };
        let ports = if admin.is_some() { 3 } else { 2 };
        port::warn_of_open_files(ports * u64::from(options.max_connections));
        let (health, health_service) = tonic_health::server::health_reporter();
        let health_service = health_service.max_decoding_message_size(MAX_MESSAGE_BYTES);
        for service in HEALTH_SERVICES {
            health
                .set_service_status(service, ServingStatus::Serving)
                .await;
        }
        let (close, closed) = watch::channel(false);
        let healthy = Arc::new(AtomicBool::new(true));
        let mut server = Self {
            engine: engine.clone(),
            grpc: grpc.address()?,
            http: http.address()?,
            admin: admin.as_ref().map(|(port, _)| port.address()).transpose()?,
            health,
            healthy: healthy.clone(),
            close,
            certificates,
            tasks: JoinSet::new(),
            drain_delay: options.drain_delay,
            drain_timeout: options.drain_timeout,
        };

        let mut builder = tonic::transport::Server::builder()
            .max_concurrent_streams(options.max_requests.min(MAX_STREAMS))
            // A health watch is answered when it begins.
            .timeout(REQUEST_TIMEOUT.saturating_add(options.redis_timeout))
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        if !options.max_connection_age.is_zero() {
            builder = builder.max_connection_age(options.max_connection_age);
        }
        let router = builder.add_routes(routes.add_service(health_service));
        let end = until_closed(&closed);
        match server.certificates.as_ref().map(Certificates::config) {
            Some(tls) => {
                let incoming = grpc.encrypted_connections(tls);
                let served = router.serve_with_incoming_shutdown(incoming, end);
                server.tasks.spawn(async { Ok(served.await?) });
            }
            None => {
                let served = router.serve_with_incoming_shutdown(grpc.connections(), end);
                server.tasks.spawn(async { Ok(served.await?) });
            }
        }

        server
            .tasks
            .spawn(upkeep(prometheus.clone(), closed.clone()));
        let web = Web {
            engine,
            healthy,
            metrics,
            prometheus,
            scrape: Arc::default(),
        };
        server.serve_http(http, web.router(), &closed);
        if let Some((port, router)) = admin {
            // As a service, so that `/admin/` works too.
            let router = Router::new().nest_service("/admin", router);
            server.serve_http(port, router, &closed);
        }
        Ok(server)
    }

    fn serve_http(&mut self, port: Port, router: Router, closed: &watch::Receiver<bool>) {
        let end = until_closed(closed);
        self.tasks.spawn(async {
            port.serve_http(router, end).await;
            Ok(())
        });
    }

    /// What the certificates of gRPC are reloaded by; `None` if there are none, or it was taken already.
    pub fn take_certificates(&mut self) -> Option<Certificates> {
        self.certificates.take()
    }

    /// What decides requests.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The address of gRPC.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// The address of HTTP.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The address of the admin API, if there is one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns the error of the first listener that fails; pending while all work.
    pub async fn wait_for_failure(&mut self) -> BoxError {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            Some(Ok(Ok(()))) | None => "a port was closed".into(),
        }
    }

    /// Ends the server: it is reported as not serving, its ports are closed, requests in flight are answered, and what is queued is
    /// sent to the store.
    ///
    /// # Errors
    ///
    /// If not all could be sent to the store.
    pub async fn stop(mut self) -> Result<(), BoxError> {
        self.healthy.store(false, Ordering::Relaxed);
        for service in HEALTH_SERVICES {
            self.health
                .set_service_status(service, ServingStatus::NotServing)
                .await;
        }
        sleep(self.drain_delay).await;
        self.close.send_replace(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        let drained = timeout(self.drain_timeout, ended).await;
        if drained.is_err() {
            warn!("some requests or health watches did not end in time");
        }
        self.tasks.shutdown().await;
        Ok(self
            .engine
            .limiter()
            .shutdown(STORE_SHUTDOWN_TIMEOUT)
            .await?)
    }
}

fn until_closed(closed: &watch::Receiver<bool>) -> impl Future<Output = ()> + Send + use<> {
    let mut closed = closed.clone();
    async move {
        // The sender lives as long as the server.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

/// A recorder of its own, so that several servers in a process have metrics of their own.
fn recorder() -> Result<(Arc<dyn Recorder + Send + Sync>, PrometheusHandle), BoxError> {
    let mut builder = PrometheusBuilder::new();
    for (metric, bounds) in tollgate::metrics::BUCKETS {
        builder = builder.set_buckets_for_metric(Matcher::Full((*metric).to_owned()), bounds)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    Ok((Arc::new(recorder), handle))
}

/// Moves what was recorded into histograms, which otherwise only a scrape does.
async fn upkeep(
    prometheus: PrometheusHandle,
    closed: watch::Receiver<bool>,
) -> Result<(), BoxError> {
    let mut ticks = interval(Duration::from_secs(5));
    let end = until_closed(&closed);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            _ = ticks.tick() => prometheus.run_upkeep(),
        }
    }
}

fn admin(
    options: &Options,
    engine: &Engine,
    activity: Arc<Activity>,
) -> Result<Option<Router>, BoxError> {
    if options.admin_token.is_empty() {
        return Ok(None);
    }
    let mut admin = Admin::new(engine.limiter()).activity(activity);
    for token in &options.admin_token {
        // The text may be a token alone: it is not repeated.
        let (name, token) = token
            .split_once('=')
            .ok_or("an admin token without a name: expected NAME=TOKEN")?;
        admin = admin.token(name, token);
    }
    Ok(Some(admin.router()?))
}

fn store(options: &Options) -> Result<Option<RedisStore>, BoxError> {
    let mut builder = RedisStore::builder()
        .prefix(&options.redis_prefix)
        .timeout(options.redis_timeout);
    if let Some(url) = &options.redis_url {
        builder = builder.url(url);
    } else if !options.redis_cluster.is_empty() {
        builder = builder.cluster(&options.redis_cluster);
    } else if let Some(master) = &options.redis_master {
        builder = builder.sentinel(master, &options.redis_sentinels);
    } else {
        return Ok(None);
    }
    if let Some(ca) = &options.redis_ca {
        builder = builder.root_certificates(read(ca)?);
    }
    if let (Some(certificate), Some(key)) = (&options.redis_cert, &options.redis_key) {
        builder = builder.client_certificate(read(certificate)?, read(key)?);
    }
    Ok(Some(builder.build()?))
}

fn read(path: &Path) -> Result<Vec<u8>, BoxError> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()).into())
}
