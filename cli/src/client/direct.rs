//! The admin API in this process, on the store of a configuration file.

use std::path::Path;

use axum::{Router, body::Body};
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;
use tollgate::{admin::Admin, config::Reference};
use tower::ServiceExt;

use crate::{
    document::{Code, Reader, invalid},
    exit::{Failure, Outcome},
};

/// A client of an admin API that this process has itself.
#[derive(Debug)]
pub(crate) struct Direct {
    router: Router,
}

impl Direct {
    pub(crate) fn new(file: &Path, code: Code) -> Outcome<Self> {
        let mut reader = Reader::default();
        let document = reader
            .read(file, code, |_| {})
            .map_err(|error| invalid(&error))?;
        for mistake in &reader.assumed {
            if let Some(Reference::Code {
                kind: "strategy",
                name,
            }) = mistake.unresolved()
            {
                return Err(Failure::Invalid(format!(
                    "{}: the counts of the application's strategy {name:?} can be read by its own code alone: use --admin URL",
                    file.display()
                )));
            }
        }
        let limiter = document
            .limiter(&reader.registry)
            .map_err(|error| invalid(&error))?;
        if limiter.stats().store.memory_keys.is_some() {
            return Err(Failure::Invalid(format!(
                "{}: counts are kept in the process that serves requests: use --admin URL",
                file.display()
            )));
        }
        let router = Admin::new(&limiter)
            .unprotected_behind_own_middleware()
            .router()
            .map_err(|error| Failure::Invalid(error.to_string()))?;
        Ok(Self { router })
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Outcome<(StatusCode, Value)> {
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| Failure::Invalid(error.to_string()))?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let collected = response.into_body().collect().await;
        let bytes = collected
            .map_err(|error| Failure::Unreachable(error.to_string()))?
            .to_bytes();
        let answer = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok((status, answer))
    }
}
