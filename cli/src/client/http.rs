//! The admin API of a running process.

use std::{env, fs, path::Path, time::Duration};

use http::{HeaderValue, Method, StatusCode, header};
use reqwest::{Url, redirect::Policy};
use serde_json::Value;

use crate::exit::{Failure, Outcome};

/// The variable of the environment with the token.
const TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

/// How long an answer is waited for: longer than a search for blocked keys, which ends after 10 s with those that it has found.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the admin API at a URL.
#[derive(Debug)]
pub(crate) struct Http {
    base: String,
    authorization: HeaderValue,
    client: reqwest::Client,
}

impl Http {
    pub(crate) fn new(url: &str, token_file: Option<&Path>) -> Outcome<Self> {
        let Some(parsed) = Url::parse(url)
            .ok()
            .filter(|url| ["http", "https"].contains(&url.scheme()))
        else {
            let reason = "--admin is no http or https URL, such as http://localhost:8080/admin";
            return Err(Failure::Invalid(reason.to_owned()));
        };
        let has_more = parsed.query().is_some() || parsed.fragment().is_some();
        if has_more || !parsed.username().is_empty() || parsed.password().is_some() {
            let reason = "--admin is a URL without a user, a password, a query and a fragment";
            return Err(Failure::Invalid(reason.to_owned()));
        }
        // Only the first call decides. Nothing else installs one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            // A token is sent to no other server.
            .redirect(Policy::none())
            .no_proxy()
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::unreachable("HTTP client", causes(&error)))?;
        Ok(Self {
            base: parsed.as_str().trim_end_matches('/').to_owned(),
            authorization: authorization(&token(token_file)?)?,
            client,
        })
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(StatusCode, Value)> {
        let Self { base, client, .. } = self;
        let mut request = client
            .request(method, format!("{base}{path}"))
            .header(header::AUTHORIZATION, self.authorization.clone());
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }
        let failed = |error: reqwest::Error| {
            let reason = if error.is_timeout() {
                format!("no answer within {} s", TIMEOUT.as_secs())
            } else {
                causes(&error.without_url())
            };
            Failure::unreachable(base, reason)
        };
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let body = response.bytes().await.map_err(failed)?;
        match serde_json::from_slice(&body) {
            Ok(body) => Ok((status, body)),
            Err(_) if !status.is_success() => Ok((status, Value::Null)),
            Err(_) => Err(Failure::unreachable(base, "the answer is no JSON")),
        }
    }
}

/// The token of the admin API.
fn token(file: Option<&Path>) -> Outcome<String> {
    let Some(file) = file else {
        return env::var(TOKEN).map_err(|_| {
            let reason =
                format!("a token is required: set {TOKEN}, or name its file by --token-file");
            Failure::Unauthorized(reason)
        });
    };
    fs::read_to_string(file)
        .map_err(|error| Failure::Unauthorized(format!("no token: {}: {error}", file.display())))
}

fn authorization(token: &str) -> Outcome<HeaderValue> {
    let unauthorized = |reason: &str| Failure::Unauthorized(reason.to_owned());
    if token.trim().is_empty() {
        return Err(unauthorized("the token is empty"));
    }
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut value =
        value.map_err(|_| unauthorized("the token has characters that a header can't have"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// An error and its causes, such as "connection refused".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}
