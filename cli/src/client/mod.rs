//! The admin API: of a running process, or in this process on the store of a configuration file.

mod direct;
mod http;

use std::path::PathBuf;

use ::http::{Method, StatusCode};
use clap::{ArgGroup, Args};
use serde_json::Value;

use self::{direct::Direct, http::Http};
use crate::{
    document::Code,
    exit::{Failure, Outcome},
};

/// Where the counts are.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("target").required(true).args(["admin", "config"]))]
pub(crate) struct Connection {
    /// Call the admin API of a running process, such as http://localhost:8080/admin. Its token is in the environment's
    /// TOLLGATE_ADMIN_TOKEN, or in --token-file.
    #[arg(long, value_name = "URL", help_heading = "Connection")]
    admin: Option<String>,
    /// Read the token of the admin API from a file.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "config",
        help_heading = "Connection"
    )]
    token_file: Option<PathBuf>,
    /// Call the store of a configuration file directly.
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    config: Option<PathBuf>,
    #[command(flatten)]
    code: Code,
}

/// A client of the admin API.
#[derive(Debug)]
pub(crate) enum Client {
    Http(Http),
    Direct(Direct),
}

impl Connection {
    pub(crate) fn client(&self) -> Outcome<Client> {
        match (&self.admin, &self.config) {
            (Some(url), _) => Ok(Client::Http(Http::new(url, self.token_file.as_deref())?)),
            (None, Some(file)) => Ok(Client::Direct(Direct::new(file, self.code)?)),
            (None, None) => Err(Failure::Invalid("one of --admin and --config".to_owned())),
        }
    }

    /// The client of a question about what one process has seen, which only that process can answer.
    pub(crate) fn process(&self, command: &str) -> Outcome<Client> {
        match self.client()? {
            client @ Client::Http(_) => Ok(client),
            Client::Direct(_) => Err(Failure::Invalid(format!(
                "{command} shows what one running process has seen: use --admin URL instead of --config"
            ))),
        }
    }
}

impl Client {
    /// The answer of a `GET` route.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Outcome<Value> {
        self.call(Method::GET, &with_query(path, query), None).await
    }

    /// The answer of a `POST` route.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// The answer of a `PUT` route.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.call(Method::PUT, path, Some(body)).await
    }

    /// The answer of a `DELETE` route.
    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Outcome<Value> {
        self.call(Method::DELETE, path, Some(body)).await
    }

    /// The answer of `GET /health`, which is an answer also if the store is unhealthy.
    pub(crate) async fn health(&self) -> Outcome<Value> {
        let (status, body) = self.send(Method::GET, "/health", None).await?;
        match body.get("healthy") {
            Some(_) if status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE => Ok(body),
            _ => Err(failure(status, &body)),
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Outcome<Value> {
        let (status, body) = self.send(method, path, body).await?;
        if !status.is_success() {
            return Err(failure(status, &body));
        }
        Ok(body)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(StatusCode, Value)> {
        match self {
            Self::Http(client) => client.send(method, path, body).await,
            Self::Direct(client) => client.send(method, path, body).await,
        }
    }
}

/// The failure of an answer with an error's status.
fn failure(status: StatusCode, body: &Value) -> Failure {
    let detail = body.get("detail").and_then(Value::as_str);
    let reason = match detail {
        Some(detail) => detail.to_owned(),
        None => format!("there is no admin API at this URL: it answers {status} without a reason"),
    };
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Failure::Unauthorized(reason),
        _ if status.is_client_error() && detail.is_some() => Failure::Invalid(reason),
        _ => Failure::Unreachable(reason),
    }
}

fn with_query(path: &str, query: &[(&str, String)]) -> String {
    if query.is_empty() {
        return path.to_owned();
    }
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    pairs.extend_pairs(query);
    format!("{path}?{}", pairs.finish())
}
