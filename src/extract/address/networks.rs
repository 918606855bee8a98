use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::{address, error::InvalidValue};

/// Networks, and the error of the first text that is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Networks {
    nets: Vec<IpNet>,
    invalid: Option<InvalidValue>,
}

impl Networks {
    /// Adds a network (`10.0.0.0/8`), or a single address.
    pub(crate) fn add(&mut self, text: &str) {
        match parse_proxy_network(text.trim()) {
            Ok(net) => self.nets.push(net),
            Err(expected) => {
                let invalid = || InvalidValue::new(format!("a network {text:?}"), expected);
                self.invalid.get_or_insert_with(invalid);
            }
        }
    }

    /// Whether an address is in one of them, as it is or as the IPv4 address that it stands for.
    pub(crate) fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let v4 = address::ipv4(address).map(IpAddr::V4);
        let is_in = |net: &IpNet| net.contains(&address) || v4.is_some_and(|v4| net.contains(&v4));
        self.nets.iter().any(is_in)
    }

    /// The networks, separated by commas; `none` if there are none.
    pub(crate) fn text(&self) -> String {
        let texts: Vec<_> = self.nets.iter().map(IpNet::to_string).collect();
        if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join(",")
        }
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        self.invalid.clone().map_or(Ok(()), Err)
    }
}

/// Parses a network. An error is a description of a valid one.
pub(crate) fn parse_network(text: &str) -> Result<IpNet, &'static str> {
    let wrong = "an address, or a CIDR such as 10.0.0.0/8 or 2001:db8::/32";
    // Parsed by the standard library, which rejects octets with a leading zero: other programs read them as octal numbers.
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address = address::parse(address).ok_or(wrong)?;
    let net = match bits {
        Some(bits) => bits
            .parse()
            .ok()
            .and_then(|bits| IpNet::new(address, bits).ok()),
        None => Some(address.into()),
    };
    let net = net.ok_or(wrong)?;
    canonical(net).ok_or("IPv4 networks in their own notation")
}

/// Parses a network of proxies. An error is a description of a valid one.
fn parse_proxy_network(text: &str) -> Result<IpNet, &'static str> {
    let net = parse_network(text)?;
    if net.prefix_len() == 0 {
        return Err("the proxies' own networks: one of all addresses would trust every client");
    }
    Ok(net)
}

/// The network in canonical form, as the addresses are that it is compared with: an IPv4 host as IPv4, in whatever form, and mapped
/// IPv4. `None` if it contains mapped and other addresses.
fn canonical(net: IpNet) -> Option<IpNet> {
    let IpNet::V6(v6) = net else {
        return Some(net);
    };
    if v6.prefix_len() == 128
        && let Some(host) = address::ipv4(net.addr())
    {
        return Some(IpNet::from(IpAddr::V4(host)));
    }
    let Some(address) = v6.addr().to_ipv4_mapped() else {
        return Some(net);
    };
    let bits = v6.prefix_len().checked_sub(96)?;
    Ipv4Net::new(address, bits).ok().map(IpNet::V4)
}
