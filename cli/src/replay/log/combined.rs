//! The common and combined formats of Apache and nginx.

use std::{borrow::Cow, net::IpAddr};

use super::{
    instant,
    record::{LoggedTime, Record, Unreadable, address, request_line},
};

/// Reads `PEER IDENTITY USER [TIME] "REQUEST" STATUS BYTES "REFERER" "USER AGENT"`, of which the last two may be missing. A name
/// of a virtual host may come before, and anything after; a further quoted list of addresses is `X-Forwarded-For`.
pub(super) fn parse(line: &str) -> Result<Record<'_>, Unreadable> {
    let (before, time, rest) =
        split_at_time(line).ok_or("no time such as [10/Oct/2027:13:55:36 +0000]")?;
    let mut first = before.split_ascii_whitespace();
    let peer = match (first.next(), first.next()) {
        (Some(peer), second) => address(peer).or_else(|| address(second?)),
        _ => None,
    };
    let (request, rest) = quoted(rest).ok_or("no request in quotes")?;
    let mut words = rest.splitn(3, ' ');
    let status = words.next().and_then(|status| status.parse().ok());
    let status = status.filter(|status| *status < 1000).ok_or("no status")?;
    let _bytes = words.next();
    let mut headers = Vec::new();
    let mut rest = words.next().unwrap_or_default();
    for name in ["referer", "user-agent"] {
        let Some((value, after)) = quoted(rest) else {
            break;
        };
        rest = after;
        if value != "-" && !value.is_empty() {
            headers.push((Cow::Borrowed(name), value));
        }
    }
    if let Some((value, _)) = quoted(rest)
        && is_address_list(&value)
    {
        headers.push((Cow::Borrowed("x-forwarded-for"), value));
    }
    let (method, target) = split_request(request).ok_or("no HTTP request")?;
    Ok(Record {
        time,
        method,
        target,
        host: None,
        peer,
        status,
        duration_us: None,
        headers,
    })
}

/// What stands before the time, the time, and what follows it.
fn split_at_time(line: &str) -> Option<(&str, LoggedTime, &str)> {
    line.match_indices('[').find_map(|(start, _)| {
        let (text, rest) = line[start + 1..].split_once(']')?;
        let micros = instant::common(text)?;
        let time = LoggedTime {
            micros,
            is_whole_second: true,
            is_arrival: false,
        };
        Some((&line[..start], time, rest.trim_start()))
    })
}

/// The text in the quotes at the beginning, without escapes, and what follows it.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = text.trim_start().strip_prefix('"')?;
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    let (inner, rest) = (&text[..end], text[end + 1..].trim_start());
    Some((unescaped(inner), rest))
}

/// The text without escapes: `\"`, `\\`, `\xhh` and the short ones of control characters.
fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.bytes();
    while let Some(byte) = left.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let mut after = left.clone();
        let unescaped = match after.next() {
            Some(b'x') => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(after.next()), digit(after.next()));
                high.zip(low).map(|(high, low)| (high * 16 + low) as u8)
            }
            Some(b'n') => Some(b'\n'),
            Some(b'r') => Some(b'\r'),
            Some(b't') => Some(b'\t'),
            Some(escaped @ (b'"' | b'\\')) => Some(escaped),
            _ => None,
        };
        match unescaped {
            Some(unescaped) => {
                bytes.push(unescaped);
                left = after;
            }
            None => bytes.push(byte),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

/// The method and the target of a request line.
fn split_request(request: Cow<'_, str>) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    match request {
        Cow::Borrowed(text) => {
            let (method, target) = request_line(text)?;
            Some((method.into(), target.into()))
        }
        Cow::Owned(text) => {
            let (method, target) = request_line(&text)?;
            Some((method.to_owned().into(), target.to_owned().into()))
        }
    }
}

fn is_address_list(text: &str) -> bool {
    text.split(',')
        .all(|part| part.trim().parse::<IpAddr>().is_ok())
}
