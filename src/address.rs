//! Addresses as clients have them: an IPv4 address within an IPv6 one, and the part that one subscriber has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an address, of which a zone (`fe80::1%eth0`, RFC 6874) is ignored.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    match text.split_once('%') {
        None => text.parse().ok(),
        Some((address, zone)) => {
            let is_zone = |byte: u8| byte.is_ascii_alphanumeric() || b"%-._~".contains(&byte);
            let fits = (1..=20).contains(&zone.len()) && zone.bytes().all(is_zone);
            let address: Ipv6Addr = address.parse().ok()?;
            fits.then_some(IpAddr::V6(address))
        }
    }
}

/// The IPv4 address of the host that an address stands for, if there is one: within IPv6 as mapped (RFC 4291) or translated (RFC
/// 7915) address, or that of NAT64 (RFC 6052), 6to4 (RFC 3056) or Teredo (RFC 4380). The latter may not have private ones.
pub(crate) fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    let v6 = match address {
        IpAddr::V4(v4) => return Some(v4),
        IpAddr::V6(v6) => v6,
    };
    if let Some(mapped) = v6.to_ipv4_mapped() {
        return Some(mapped);
    }
    let [_, _, a, b, c, d, .., w, x, y, z] = v6.octets();
    let v4 = match v6.segments() {
        [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => [w, x, y, z],
        [0x2002, ..] => [a, b, c, d],
        [0x2001, 0, ..] => [!w, !x, !y, !z],
        _ => return None,
    };
    Some(Ipv4Addr::from(v4)).filter(|v4| is_public(*v4))
}

/// The address as IPv4 where it stands for an IPv4 host.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    ipv4(address).map_or(address, IpAddr::V4)
}

/// Whether an address is one that proxies in front of a server have and clients on the internet don't.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match canonical(address) {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// Whether hosts on the internet may have the address (RFC 6890), which those of documentation stand for.
fn is_public(v4: Ipv4Addr) -> bool {
    let [a, b, ..] = v4.octets();
    let is_shared = a == 100 && b & 0xc0 == 64;
    let is_unicast = (1..=223).contains(&a);
    is_unicast && !is_shared && !v4.is_private() && !v4.is_loopback() && !v4.is_link_local()
}

/// The prefix of a network's own NAT64 (RFC 6052, 2.2), which translates addresses of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nat64 {
    prefix: Ipv6Addr,
    bits: u8,
}

impl Nat64 {
    /// Parses a prefix of 32, 40, 48, 56, 64 or 96 bits. An error is a description of a valid one.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (address, bits) = text.trim().split_once('/').unwrap_or((text, ""));
        let (address, bits) = (address.parse::<Ipv6Addr>(), bits.parse());
        match (address, bits) {
            (Ok(prefix), Ok(bits @ (32 | 40 | 48 | 56 | 64 | 96)))
                if masked(prefix, bits) == prefix =>
            {
                Ok(Self { prefix, bits })
            }
            _ => Err("a prefix of 32, 40, 48, 56, 64 or 96 bits, such as 64:ff9b:1::/96"),
        }
    }

    /// The IPv4 address that the NAT64 has translated, or else the same address.
    pub(crate) fn translated(self, address: IpAddr) -> IpAddr {
        let IpAddr::V6(v6) = address else {
            return address;
        };
        if masked(v6, self.bits) != self.prefix {
            return address;
        }
        let octets = v6.octets();
        // Octet 8 is reserved.
        let mut after = (usize::from(self.bits / 8)..16).filter(|place| *place != 8);
        IpAddr::V4(std::array::from_fn(|_| after.next().map_or(0, |place| octets[place])).into())
    }
}

impl std::fmt::Display for Nat64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.prefix, self.bits)
    }
}

/// The first bits of an address.
pub(crate) fn masked(address: Ipv6Addr, bits: u8) -> Ipv6Addr {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    Ipv6Addr::from(u128::from(address) & mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_stands_for_an_ipv4_host_in_every_standard_form() {
        #[rustfmt::skip]
        let rows = [
            ("192.0.2.1", Some("192.0.2.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("::ffff:0:192.0.2.1", Some("192.0.2.1")),
            ("64:ff9b::192.0.2.1", Some("192.0.2.1")),
            ("2002:c000:201:9::7", Some("192.0.2.1")),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", Some("192.0.2.45")),
            // Those of hosts on the internet alone.
            ("64:ff9b::10.0.0.1", None), ("2002:7f00:1::", None), ("64:ff9b::100.64.0.1", None), ("2002:e000:1::", None),
            // Others that look alike.
            ("64:ff9b:1::192.0.2.1", None), ("::192.0.2.1", None), ("2001:db8::192.0.2.1", None), ("2003:c000:201::", None),
        ];
        for (text, expected) in rows {
            let found = ipv4(parse(text).expect(text));
            assert_eq!(found, expected.map(|v4| v4.parse().expect(v4)), "{text}");
        }
    }

    #[test]
    fn a_nat64_of_ones_own_translates_by_the_layout_of_its_prefix() {
        // RFC 6052, 2.4
        #[rustfmt::skip]
        let rows = [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ];
        for (prefix, text) in rows {
            let nat64 = Nat64::parse(prefix).expect(prefix);
            let translated = nat64.translated(parse(text).expect(text));
            assert_eq!(translated, IpAddr::from([192, 0, 2, 33]), "{text}");
            let other = parse("2001:db9::1").expect("an address");
            assert_eq!(nat64.translated(other), other);
        }
        for wrong in [
            "",
            "64:ff9b:1::",
            "64:ff9b:1::/95",
            "64:ff9b:1::1/48",
            "10.0.0.0/8",
        ] {
            assert!(Nat64::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_zone_is_ignored_and_other_text_is_no_address() {
        let link_local = "fe80::1".parse().ok();
        for text in ["fe80::1%eth0", "fe80::1%25eth0", "fe80::1%2"] {
            assert_eq!(parse(text), link_local, "{text}");
        }
        for text in ["", "fe80::1%", "10.0.0.1%eth0", "fe80::1%a b", "%eth0"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
