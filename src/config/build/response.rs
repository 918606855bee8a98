//! A layer's settings.

use bytes::Bytes;
use http::{HeaderValue, Response, header::CONTENT_TYPE, request::Parts};
use http_body_util::Full;

use super::Build;
use crate::{
    config::{
        document::response::{
            HeaderFormatSection, HeaderSettings, HeadersSection, RejectionSection,
        },
        tree::path::Path,
    },
    headers::RateLimitHeaders,
    layer::RateLimitLayer,
    limiter::Rejected,
    respond::{self, OnRejection, delay::retry_after_seconds},
    setting::{Code, SettingValue},
};

/// A layer's settings.
pub(super) struct Responses {
    enabled: bool,
    headers: RateLimitHeaders,
    on_rejection: Option<Code<OnRejection>>,
    refund_handler_rejections: bool,
}

impl Responses {
    /// The layer with these settings.
    pub(super) fn set(self, layer: RateLimitLayer) -> RateLimitLayer {
        let layer = layer
            .enabled(self.enabled)
            .headers(self.headers)
            .refund_handler_rejections(self.refund_handler_rejections);
        match self.on_rejection {
            Some(respond) => layer.respond_by(respond),
            None => layer,
        }
    }
}

impl Build<'_> {
    pub(super) fn responses(&mut self) -> Responses {
        let document = self.document;
        let root = Path::default();
        let on_rejection = match (&document.on_rejection, &document.rejection) {
            (None, None) => None,
            (Some(_), Some(_)) => {
                let found = "a function together with the text of rejection";
                self.found(&root.key("on_rejection"), found, "one of them");
                None
            }
            (Some(name), None) => {
                let respond = self.registry.find_on_rejection(name);
                self.value(&root.key("on_rejection"), respond)
            }
            (None, Some(section)) => self.text_response(&root.key("rejection"), section),
        };
        Responses {
            enabled: document.enabled.unwrap_or(true),
            headers: document
                .headers
                .as_ref()
                .map_or_else(Default::default, headers),
            on_rejection,
            refund_handler_rejections: document.refund_handler_rejections.unwrap_or_default(),
        }
    }

    fn text_response(
        &mut self,
        path: &Path,
        section: &RejectionSection,
    ) -> Option<Code<OnRejection>> {
        let content_type = section.content_type.as_deref();
        let content_type = content_type.unwrap_or("text/plain; charset=utf-8");
        let is_media_type = content_type
            .split_once('/')
            .is_some_and(|(kind, subtype)| !kind.is_empty() && !subtype.is_empty());
        let value = HeaderValue::from_str(content_type).ok();
        let value = value.filter(|_| is_media_type);
        if value.is_none() {
            let expected = "a media type such as \"text/html\"";
            let path = path.key("content_type");
            self.found(&path, format!("{content_type:?}"), expected);
        }
        if let Some(unknown) = unknown_placeholder(&section.body) {
            let expected = "{retry_after}, {policy}, or other text in braces";
            let found = format!("the placeholder {{{unknown}}}");
            self.found(&path.key("body"), found, expected);
        }
        let content_type = value?;
        let mut value = vec![("body", SettingValue::text(section.body.clone()))];
        if let Some(content_type) = &section.content_type {
            value.push(("content_type", SettingValue::text(content_type.clone())));
        }
        let body = section.body.clone();
        let respond = respond::on_rejection(move |rejected: &Rejected, _: &Parts| {
            let mut response = Response::new(Full::new(Bytes::from(text(&body, rejected))));
            *response.status_mut() = rejected.status();
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, content_type.clone());
            response
        });
        Some(respond.described_as(SettingValue::table(value)))
    }
}

/// A word in braces that is no placeholder: probably a misspelled one.
fn unknown_placeholder(body: &str) -> Option<&str> {
    let words = body.split('{').skip(1);
    let words = words.filter_map(|text| Some(text.split_once('}')?.0));
    let is_word = |word: &&str| {
        let mut bytes = word.bytes();
        !word.is_empty()
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
    };
    let mut words = words.filter(is_word);
    words.find(|word| !["retry_after", "policy"].contains(word))
}

/// The body of the response to a rejected request.
fn text(body: &str, rejected: &Rejected) -> String {
    let wait = rejected.retry_after().duration();
    let seconds = wait.map(|wait| retry_after_seconds(wait).to_string());
    let mut policies = rejected.decision().policies();
    let policy = policies.find(|policy| policy.rejected());
    let policy = policy.map(|policy| policy.policy().to_owned());
    body.replace("{retry_after}", &seconds.unwrap_or_default())
        .replace("{policy}", &policy.unwrap_or_default())
}

fn headers(section: &HeadersSection) -> RateLimitHeaders {
    let settings = match section {
        HeadersSection::Format(format) => &HeaderSettings {
            format: *format,
            ..HeaderSettings::default()
        },
        HeadersSection::Settings(settings) => settings,
    };
    let mut headers = match settings.format {
        HeaderFormatSection::Draft => RateLimitHeaders::draft(),
        HeaderFormatSection::Draft11 => RateLimitHeaders::draft_11(),
        HeaderFormatSection::Draft06 => RateLimitHeaders::draft_06(),
        HeaderFormatSection::XRatelimit => RateLimitHeaders::x_ratelimit(),
        HeaderFormatSection::XRatelimitEpoch => RateLimitHeaders::x_ratelimit_epoch(),
        HeaderFormatSection::TowerGovernor => RateLimitHeaders::tower_governor(),
        HeaderFormatSection::None => RateLimitHeaders::none(),
    };
    if settings.closest == Some(true) {
        headers = headers.closest();
    }
    match settings.jitter {
        Some(jitter) => headers.jitter(jitter),
        None => headers,
    }
}
