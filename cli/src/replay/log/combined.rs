//! The common and combined formats of Apache and nginx.

use super::{Record, Unreadable, address, request_line, status, time};

/// Reads `PEER IDENTITY USER [TIME] "REQUEST" STATUS BYTES "REFERER" "USER AGENT"`, of which the last two may be missing. A name
/// of a virtual host may come before, and anything after; a further quoted list of addresses is `X-Forwarded-For`.
pub(super) fn parse(line: &str) -> Result<Record, Unreadable> {
    let (before, arrived_us, rest) =
        split_at_time(line).ok_or("no time such as [10/Oct/2027:13:55:36 +0000]")?;
    let (request, rest) = quoted(rest).ok_or("no request in quotes")?;
    let (method, target) = request_line(&request).ok_or("no HTTP request")?;
    let mut words = rest.splitn(3, ' ');
    let status = words.next().and_then(status).ok_or("no status")?;
    let _bytes = words.next();
    let mut rest = words.next().unwrap_or_default();
    let mut headers = Vec::new();
    for name in ["referer", "user-agent", "x-forwarded-for"] {
        let Some((value, after)) = quoted(rest) else {
            break;
        };
        rest = after;
        let is_forwarded = name == "x-forwarded-for";
        if !is_forwarded || value.split(',').all(|part| address(part.trim()).is_some()) {
            headers.push((name.to_owned(), value));
        }
    }
    headers.retain(|(_, value)| value != "-" && !value.is_empty());
    Ok(Record {
        arrived_us,
        duration_us: 0,
        method: method.to_owned(),
        target: target.to_owned(),
        host: None,
        peer: before.split_ascii_whitespace().take(2).find_map(address),
        status,
        headers,
    })
}

/// What stands before the time, the time, and what follows it.
fn split_at_time(line: &str) -> Option<(&str, i64, &str)> {
    line.match_indices('[').find_map(|(start, _)| {
        let (text, rest) = line[start + 1..].split_once(']')?;
        Some((&line[..start], time::common(text)?, rest))
    })
}

/// The text in the quotes at the beginning, without escapes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start().strip_prefix('"')?;
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((unescaped(&text[..end]), text[end + 1..].trim_start()))
}

/// The text without the escapes of servers: `\"`, `\\` and `\xhh`.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut left = text.as_bytes();
    while let Some((&byte, after)) = left.split_first() {
        let (unescaped, rest) = match left {
            [b'\\', escaped @ (b'"' | b'\\'), rest @ ..] => (*escaped, rest),
            [b'\\', b'x', high, low, rest @ ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (high * 16 + low, rest),
                _ => (byte, after),
            },
            _ => (byte, after),
        };
        bytes.push(unescaped);
        left = rest;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    let digit = char::from(digit).to_digit(16)?;
    u8::try_from(digit).ok()
}
