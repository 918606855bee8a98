//! An admin API to call, whose every answer is held against its OpenAPI document.

use axum::body::Bytes;
use http::{header, request};
use serde::Serialize;
use tollgate::admin::{Activity, Admin, AdminTarget};
use tollgate_tests::prelude::*;

use crate::admin::openapi;

pub(crate) const TOKEN: &str = "a-token-of-the-operators";

/// An admin API.
#[derive(Clone)]
pub(crate) struct Api(pub(crate) Router);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) json: Value,
}

impl Api {
    pub(crate) fn of(target: impl Into<AdminTarget>) -> Self {
        Self::with(Admin::new(target).token("ops", TOKEN))
    }

    pub(crate) fn with(admin: Admin) -> Self {
        Self(admin.router().expect("an admin API"))
    }

    /// That of a limiter which `builder` makes, with its activity.
    pub(crate) fn observing(
        builder: LimiterBuilder,
        policies: impl IntoIterator<Item = Policy>,
    ) -> (Self, Limiter) {
        let activity = Arc::new(Activity::new());
        let limiter = stores::limiter(builder.observe(activity.clone()), policies);
        let admin = Admin::new(&limiter).token("ops", TOKEN).activity(activity);
        (Self::with(admin), limiter)
    }

    /// Sends a request.
    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.0.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        // Events don't end: the first frame has the first of them.
        let is_stream = parts.headers[header::CONTENT_TYPE] == "text/event-stream";
        let body = match is_stream {
            true => first_frame(body).await,
            false => body.collect().await.expect("a body").to_bytes(),
        };
        let json = match parts.headers[header::CONTENT_TYPE].to_str() {
            Ok("application/json" | "application/problem+json") => {
                serde_json::from_slice(&body).expect("JSON")
            }
            Ok("text/event-stream" | "text/html; charset=utf-8") => {
                String::from_utf8_lossy(&body).into()
            }
            other => panic!("{method} {path}: {other:?}"),
        };
        let answer = Answer {
            status: parts.status,
            headers: parts.headers,
            json,
        };
        openapi::validate(&method, &path, &answer);
        answer
    }

    /// Sends a request with the token.
    pub(crate) async fn call(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        let request = signed(method, path, TOKEN).body(body.into());
        self.send(request.expect("a request")).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, body.to_string()).await
    }

    /// Posts what succeeds.
    #[track_caller]
    pub(crate) fn done(&self, path: &str, body: Value) -> impl Future<Output = Value> {
        let (api, path) = (self.clone(), path.to_owned());
        async move {
            let answer = api.post(&path, &body).await;
            assert_eq!(answer.status, 200, "{path} {body}: {}", answer.json);
            answer.json
        }
    }

    /// Posts what is a mistake; returns its detail.
    #[track_caller]
    pub(crate) fn mistake(&self, path: &str, body: Value) -> impl Future<Output = String> {
        let (api, path) = (self.clone(), path.to_owned());
        async move {
            let answer = api.post(&path, &body).await;
            assert_eq!(answer.status, 400, "{path} {body}: {}", answer.json);
            answer.json["detail"].as_str().expect("a detail").to_owned()
        }
    }
}

/// Asserts that a JSON has these values: of objects the fields that are given, where null stands for none; of lists all elements.
#[track_caller]
pub(crate) fn assert_has(found: &Value, expected: Value) {
    fn has(found: &Value, expected: &Value) -> bool {
        match (found, expected) {
            (Value::Object(_), Value::Object(fields)) => {
                let mut fields = fields.iter();
                fields.all(|(name, value)| has(found.get(name).unwrap_or(&Value::Null), value))
            }
            (Value::Array(found), Value::Array(expected)) => {
                let mut pairs = found.iter().zip(expected);
                found.len() == expected.len() && pairs.all(|(found, expected)| has(found, expected))
            }
            _ => found == expected,
        }
    }
    assert!(has(found, &expected), "no {expected} in {found}");
}

/// What a list has of a policy.
#[track_caller]
pub(crate) fn under<'a>(list: &'a Value, policy: &str) -> &'a Value {
    let mut list = list.as_array().expect("a list").iter();
    let found = list.find(|one| one["policy"] == policy || one["name"] == policy);
    found.expect(policy)
}

/// Asserts that one line of the log contains a text, and that it has these parts.
#[track_caller]
pub(crate) fn assert_logged<'a>(log: &Log, text: &str, parts: impl IntoIterator<Item = &'a str>) {
    let lines = log.lines(text);
    assert_eq!(lines.len(), 1, "{text} in {}", log.text());
    assert_contains(&lines[0], parts);
}

/// A key under a policy, as bodies name it.
pub(crate) fn about(policy: &str, key: impl Serialize) -> Value {
    json!({"policy": policy, "key": key})
}

/// A key of a secret, as answers show it.
pub(crate) fn shown(secret: &str) -> String {
    Key::secret(secret).as_str().replace('#', "hash:")
}

/// As many streams of events as a process sends at once.
pub(crate) async fn event_streams(api: &Api) -> Vec<Body> {
    let mut streams = Vec::new();
    for _ in 0..64 {
        let request = signed(Method::GET, "/events", TOKEN).body(Body::empty());
        let response = api.0.clone().oneshot(request.expect("a request")).await;
        let response = response.expect("infallible");
        assert_eq!(response.status(), StatusCode::OK);
        streams.push(response.into_body());
    }
    streams
}

async fn first_frame(mut body: Body) -> Bytes {
    let frame = body.frame().await.expect("a frame").expect("no error");
    frame.into_data().expect("data")
}

pub(crate) fn request(method: Method, path: &str) -> request::Builder {
    let request = Request::builder().method(&method).uri(path);
    match method {
        Method::GET => request,
        _ => request.header("content-type", "application/json"),
    }
}

/// A request with a token.
pub(crate) fn signed(method: Method, path: &str, token: &str) -> request::Builder {
    request(method, path).header("authorization", format!("Bearer {token}"))
}

/// One policy of each kind that the routes treat differently.
pub(crate) fn policies() -> Vec<Policy> {
    vec![
        Policy::new("api", Quota::requests(10).per_minute()).key(extract::header("x-api-key")),
        Policy::new("address", Quota::requests(100).per_hour().burst(20)),
        Policy::new("shared", Quota::requests(5).per_minute())
            .key(extract::global())
            .strategy(ListWindow)
            .caller(extract::header("x-user")),
        Policy::new("exports", Quota::concurrent(2))
            .key(extract::from_fn(|_| None))
            .missing_key(MissingKey::Skip),
        Policy::new("abuse", Quota::requests(3).per_minute())
            .strategy(Ban::for_duration(secs(600))),
        Policy::block_list("blocked").key(extract::header("x-api-key")),
        Policy::new("api-next", Quota::requests(5).per_minute())
            .key(extract::header("x-api-key"))
            .shadow(),
    ]
}

/// A limiter that counts in process, and its clock.
pub(crate) fn in_process() -> (Limiter, ManualClock) {
    let (store, clock) = stores::frozen();
    let builder = Limiter::builder().store(store);
    (stores::limiter(builder, policies()), clock)
}

/// A limiter under these policies that counts in process.
pub(crate) fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    stores::limiter(Limiter::builder().store(stores::frozen().0), policies)
}

/// An admin API of a limiter that counts in process.
pub(crate) fn api() -> Api {
    Api::of(in_process().0)
}

/// An admin API with the activity of its limiter.
pub(crate) fn observed() -> (Api, Limiter) {
    let builder = Limiter::builder().store(stores::frozen().0);
    Api::observing(builder, policies())
}

/// A limiter whose store can't be reached.
pub(crate) fn unreachable() -> Limiter {
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a store");
    stores::limiter(Limiter::builder().store(store), policies())
}

/// A limiter whose store panics at each change by an operator, and whose key `sk_1` has units in use.
pub(crate) async fn panicking() -> Limiter {
    let store = StubStore::responding(|op| {
        let changes = [Op::Reset, Op::Adjust];
        assert!(!changes.contains(&op), "as the test expects: {op:?}");
        None
    });
    let limiter = stores::limiter(Limiter::builder().store(store), policies());
    let used = limiter.admit(("api", Key::secret("sk_1"))).await;
    assert!(used.is_ok());
    limiter
}

/// A good body of a method of a route.
pub(crate) fn good_body_of(method: &Method, path: &str) -> Value {
    let mut body = good_body(path);
    if method == Method::PUT {
        body["exempt"] = json!(true);
    }
    body
}

/// A good body of each route with one.
pub(crate) fn good_body(path: &str) -> Value {
    match path {
        "/peek" => json!({"policy": "api", "key": "sk_1"}),
        "/explain" => json!({"method": "GET", "uri": "/", "headers": [["x-api-key", "sk_1"]]}),
        "/reset" => json!({"key": "sk_1"}),
        "/credit" => json!({"policy": "api", "key": "sk_1", "units": 1}),
        "/block" => json!({"key": "sk_1", "seconds": 60}),
        "/unblock" => json!({"key": "sk_1"}),
        "/callers" => json!({"policy": "shared", "key": "*"}),
        "/overrides" => json!({"policy": "api", "key": "sk_1"}),
        _ => panic!("no body for {path}"),
    }
}
