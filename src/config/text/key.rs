//! Parses the texts of keys, such as `header:x-api-key | peer`.

use std::sync::Arc;

use crate::{
    config::{Registry, names},
    error::InvalidValue,
    extract::{self, ClientIp, KeyExtractor, OrElse, built_in::BUILT_IN, parse_network},
    scan::{Scanner, Token},
};

type Extractor = Arc<dyn KeyExtractor>;

/// How deep keys are nested, at most.
const MAX_DEPTH: usize = 16;

/// Parses the text of a key: of one extractor, of alternatives (`a | b`, `same(a, b)`) or of a tuple (`[a, b]`).
pub(crate) fn parse_key(text: &str, registry: &Registry) -> Result<Extractor, InvalidValue> {
    let mut parser = Parser {
        text,
        tokens: Scanner::new("key", text),
        registry,
        depth: 0,
    };
    let key = parser.alternatives()?;
    if *parser.tokens.peek() != Token::End {
        return Err(parser
            .tokens
            .unexpected("nothing more, or | and another key"));
    }
    key.validate()?;
    Ok(key)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Scanner<'a>,
    registry: &'a Registry,
    depth: usize,
}

impl Parser<'_> {
    /// One key, or several with `|` between them.
    fn alternatives(&mut self) -> Result<Extractor, InvalidValue> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let value = format!("a key of more than {MAX_DEPTH} levels of brackets");
            return Err(InvalidValue::new(value, "fewer levels"));
        }
        let first = self.key()?;
        let mut all = None;
        while self.tokens.take_sign('|') {
            let next = self.key()?;
            all = Some(match all {
                None => OrElse::new(first.clone(), next),
                Some(all) => OrElse::or_else(all, next),
            });
        }
        self.depth -= 1;
        Ok(all.map_or(first, |all| Arc::new(all)))
    }

    fn key(&mut self) -> Result<Extractor, InvalidValue> {
        if self.tokens.take_sign('(') {
            let inner = self.alternatives()?;
            self.sign(')', "\")\" or |")?;
            return Ok(inner);
        }
        if self.tokens.take_sign('[') {
            return self.tuple();
        }
        let (field, name) = match self.tokens.peek() {
            Token::Quoted(field, name) => match field.strip_suffix(':') {
                Some(field) => (field, name.clone()),
                None => {
                    return Err(self
                        .tokens
                        .unexpected("a key without quotes, such as client_ip"));
                }
            },
            Token::Word(word) => match word.split_once(':') {
                Some((field, name)) => (field, name.to_owned()),
                None => return self.word(word),
            },
            _ => return Err(self.tokens.unexpected("a key such as client_ip")),
        };
        self.field(field, name)
    }

    /// The rest of a tuple.
    fn tuple(&mut self) -> Result<Extractor, InvalidValue> {
        let mut keys = vec![self.alternatives()?];
        while self.tokens.take_sign(',') {
            keys.push(self.alternatives()?);
        }
        self.sign(']', "\",\" or \"]\"")?;
        Ok(match <[_; 2]>::try_from(keys) {
            Ok([a, b]) => Arc::new((a, b)),
            Err(keys) => match <[_; 3]>::try_from(keys) {
                Ok([a, b, c]) => Arc::new((a, b, c)),
                Err(keys) => match <[_; 4]>::try_from(keys) {
                    Ok([a, b, c, d]) => Arc::new((a, b, c, d)),
                    Err(keys) => {
                        let value = format!("a list of {} keys", keys.len());
                        return Err(InvalidValue::new(value, "two to four"));
                    }
                },
            },
        })
    }

    /// A key of one word, and its settings.
    fn word(&mut self, word: &str) -> Result<Extractor, InvalidValue> {
        self.tokens.take();
        Ok(match word {
            "client_ip" => Arc::new(self.client_ip()?),
            "bearer" => Arc::new(self.registry.bearer()),
            "same" => self.same()?,
            "header" | "query" | "cookie" => {
                return Err(InvalidValue::new(
                    format!("{word} without a name, in the key {:?}", self.text),
                    format!("a name after a colon, such as {}", example(word)),
                ));
            }
            word => match BUILT_IN.iter().find(|(text, _)| *text == word) {
                Some((_, Some(parse))) => parse(&mut self.tokens)?,
                _ => {
                    let registered = self.registry.find_key(word);
                    registered.ok_or_else(|| self.unknown(word))?
                }
            },
        })
    }

    fn same(&mut self) -> Result<Extractor, InvalidValue> {
        let both = "two keys in parentheses: same(KEY, KEY)";
        self.sign('(', both)?;
        let first = self.alternatives()?;
        self.sign(',', both)?;
        let second = self.alternatives()?;
        self.sign(')', both)?;
        Ok(Arc::new(first.or_same(second)))
    }

    fn field(&mut self, field: &str, name: String) -> Result<Extractor, InvalidValue> {
        if !["header", "query", "cookie"].contains(&field) {
            return Err(self.unknown(&format!("{field}:{name}")));
        }
        self.tokens.take();
        if name.is_empty() {
            return Err(InvalidValue::new(
                format!("{field} without a name, in the key {:?}", self.text),
                format!("a name after the colon, such as {}", example(field)),
            ));
        }
        let secret = self.tokens.take_word("secret");
        let readable = !secret && self.tokens.take_word("readable");
        macro_rules! key {
            ($key:expr) => {
                match $key {
                    key if secret => Arc::new(key.secret()),
                    key if readable => Arc::new(key.readable()),
                    key => Arc::new(key),
                }
            };
        }
        Ok(match field {
            "header" => key!(extract::header(name)),
            "query" => key!(extract::query(name)),
            _ if self.tokens.take_word("first") => key!(extract::cookie(name).first()),
            _ if self.tokens.take_word("last") => key!(extract::cookie(name).last()),
            _ => key!(extract::cookie(name)),
        })
    }

    /// The document's `client_ip` or, with settings, one that has these alone.
    fn client_ip(&mut self) -> Result<ClientIp, InvalidValue> {
        let mut own: Option<ClientIp> = None;
        while let Some(setting) = self.tokens.peek_word() {
            let client_ip = own.clone().unwrap_or_else(extract::client_ip);
            if ![
                "hops",
                "trusted_proxies",
                "forwarded",
                "header",
                "ipv6_prefix",
                "ipv4_prefix",
                "nat64",
            ]
            .contains(&setting)
            {
                break;
            }
            self.tokens.take();
            own = Some(match setting {
                "hops" => client_ip.hops(self.tokens.take_number("hops 2")?),
                "trusted_proxies" => client_ip.trusted_proxies(self.networks()?),
                "forwarded" => client_ip.forwarded(),
                "header" => client_ip.header(self.header_name()?),
                "ipv6_prefix" => client_ip.ipv6_prefix(self.tokens.take_number("ipv6_prefix 56")?),
                "ipv4_prefix" => client_ip.ipv4_prefix(self.tokens.take_number("ipv4_prefix 24")?),
                _ => client_ip.nat64(self.tokens.take_text("nat64 64:ff9b:1::/96")?),
            });
        }
        Ok(own.unwrap_or_else(|| self.registry.client_ip()))
    }

    /// Networks with commas between them, or `none`.
    fn networks(&mut self) -> Result<Vec<String>, InvalidValue> {
        let is_network = |word: &str| parse_network(word).is_ok();
        if self.tokens.take_word("none") {
            return Ok(Vec::new());
        }
        let mut networks = Vec::new();
        loop {
            let Some(network) = self.tokens.peek_word().filter(|word| is_network(word)) else {
                let expected =
                    "networks such as trusted_proxies 10.0.0.0/8,192.168.0.0/16, or none";
                return Err(self.tokens.unexpected(expected));
            };
            self.tokens.take();
            networks.push(network.to_owned());
            if !self.tokens.take_sign_before(',', is_network) {
                return Ok(networks);
            }
        }
    }

    fn header_name(&mut self) -> Result<String, InvalidValue> {
        match self.tokens.peek().clone() {
            Token::Word(name) => {
                self.tokens.take();
                Ok(name.to_owned())
            }
            Token::Quoted("", name) => {
                self.tokens.take();
                Ok(name)
            }
            _ => Err(self
                .tokens
                .unexpected("the name of a header, such as header cf-connecting-ip")),
        }
    }

    fn sign(&mut self, sign: char, expected: &str) -> Result<(), InvalidValue> {
        match self.tokens.take_sign(sign) {
            true => Ok(()),
            false => Err(self.tokens.unexpected(expected)),
        }
    }

    fn unknown(&self, name: &str) -> InvalidValue {
        names::unknown(
            "key",
            name,
            &names::built_in_keys(),
            self.registry.key_names(),
        )
    }
}

/// A key of a named field.
fn example(field: &str) -> &'static str {
    match field {
        "header" => "header:x-api-key",
        "query" => "query:api_key",
        _ => "cookie:session",
    }
}
