use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use http::request::Parts;
use ipnet::IpNet;

use super::file::{entries, not_from_file};
use crate::{
    address,
    error::{ConfigError, InvalidValue},
    extract::{ClientIp, KeyExtractor, client_ip, parse_network},
};

/// A list of client addresses and networks to [allow](crate::limiter::LimiterBuilder::allow) or [deny](crate::limiter::LimiterBuilder::deny).
///
/// An entry is a network (`10.0.0.0/8`, `2001:db8::/32`) or a single address. An IPv4 address within an IPv6 one (mapped, or by NAT64,
/// 6to4 or Teredo) is listed if either is. Clones share one list: [`replace`](AddressList::replace) changes it for all of them, also while requests are served. A
/// request sees the list before or after the change, never a part, and doesn't wait for it.
///
/// The address is that of the socket's peer unless [`client_ip`](AddressList::client_ip) is set. A request whose address is
/// unknown is not on the list, nor is a [`check`](crate::Limiter::check) without an [address](crate::limiter::Check::address): see
/// [`OnUnknownAddress`](crate::access::OnUnknownAddress).
///
/// ```
/// use tollgate::{Key, Limiter, Policy, Quota, access::AddressList};
///
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// let blocked = AddressList::new(["192.0.2.0/24"])?;
/// let limiter = Limiter::builder()
///     .policy(Policy::new("burst", Quota::requests(10).per_second()))
///     .deny(blocked.clone())
///     .build()?;
/// let address = "192.0.2.7".parse().unwrap();
/// assert!(!limiter.check(Key::ip(address)).address(address).await.is_admitted());
///
/// blocked.replace(["198.51.100.0/24"])?;
/// assert!(limiter.check(Key::ip(address)).address(address).await.is_admitted());
/// # Ok::<(), tollgate::ConfigError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AddressList {
    shared: Arc<Shared>,
    client: ClientIp,
}

#[derive(Debug)]
struct Shared {
    networks: ArcSwap<Networks>,
    file: Option<PathBuf>,
}

/// The networks of each family, sorted; none contains another.
#[derive(Debug, Default, PartialEq)]
struct Networks {
    v4: Box<[IpNet]>,
    v6: Box<[IpNet]>,
}

impl AddressList {
    /// A list of these networks and addresses, as text or as types that are displayed so.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if an entry is neither.
    pub fn new(entries: impl IntoIterator<Item = impl ToString>) -> Result<Self, ConfigError> {
        Ok(Self::of(read(entries)?, None))
    }

    /// Reads a list from a file of at most 64 MiB: one entry per line, and comments after a `#`.
    ///
    /// ```
    /// use tollgate::access::AddressList;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("tollgate-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("blocked.txt");
    /// std::fs::write(&path, "192.0.2.0/24 # a scanner\n")?;
    /// let blocked = AddressList::from_file(&path)?;
    /// assert!(blocked.contains("192.0.2.7".parse()?));
    /// // After a change of the file.
    /// std::fs::write(&path, "198.51.100.1\n")?;
    /// blocked.reload()?;
    /// assert!(!blocked.contains("192.0.2.7".parse()?));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the file can't be read, or an entry is invalid; it names the line.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let path = path.into();
        Ok(Self::of(read_file(&path)?, Some(path)))
    }

    fn of(networks: Networks, file: Option<PathBuf>) -> Self {
        Self {
            shared: Arc::new(Shared {
                networks: ArcSwap::from_pointee(networks),
                file,
            }),
            client: client_ip(),
        }
    }

    /// Sets how a request's address is found behind proxies. Default: the socket's peer.
    #[must_use]
    pub fn client_ip(mut self, client: ClientIp) -> Self {
        self.client = client;
        self
    }

    /// Replaces all entries at once.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if an entry is invalid; the list is then unchanged.
    pub fn replace(
        &self,
        entries: impl IntoIterator<Item = impl ToString>,
    ) -> Result<(), ConfigError> {
        self.shared.networks.store(Arc::new(read(entries)?));
        Ok(())
    }

    /// Reads the list's file again, and replaces all entries at once. It blocks while it reads: call it from `spawn_blocking`
    /// in async code.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the list is not from a file, the file can't be read, or an entry is invalid; the list is then
    /// unchanged.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let Some(path) = &self.shared.file else {
            return Err(not_from_file());
        };
        self.shared.networks.store(Arc::new(read_file(path)?));
        Ok(())
    }

    /// Whether an address is on the list.
    pub fn contains(&self, address: IpAddr) -> bool {
        let networks = self.shared.networks.load();
        let address = self.client.translated(address.to_canonical());
        let v4 = address::ipv4(address).map(IpAddr::V4);
        networks.contain(address) || v4.is_some_and(|v4| networks.contain(v4))
    }

    /// Whether both list the same networks, from the same file if from any, and find addresses alike.
    pub(super) fn has_same_entries(&self, other: &Self) -> bool {
        self.shared.file == other.shared.file
            && self.client.config_text() == other.client.config_text()
            && *self.shared.networks.load() == *other.shared.networks.load()
    }

    pub(crate) fn address(&self, parts: &Parts) -> Option<IpAddr> {
        self.client.address(parts)
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidValue> {
        self.client.validate()
    }
}

impl Networks {
    fn contain(&self, address: IpAddr) -> bool {
        let networks = match address {
            IpAddr::V4(_) => &self.v4,
            IpAddr::V6(_) => &self.v6,
        };
        // Only the last network that begins at or before the address can contain it.
        let after = networks.partition_point(|net| net.network() <= address);
        let candidate = after.checked_sub(1).and_then(|index| networks.get(index));
        candidate.is_some_and(|net| net.contains(&address))
    }

    fn of(nets: Vec<IpNet>) -> Self {
        let mut nets = IpNet::aggregate(&nets);
        nets.sort_unstable_by_key(IpNet::network);
        let (v4, v6): (Vec<_>, Vec<_>) = nets
            .into_iter()
            .partition(|net| matches!(net, IpNet::V4(_)));
        Self {
            v4: v4.into(),
            v6: v6.into(),
        }
    }
}

fn read(entries: impl IntoIterator<Item = impl ToString>) -> Result<Networks, ConfigError> {
    let nets = entries
        .into_iter()
        .map(|entry| read_one(&entry.to_string()));
    let nets = nets.collect::<Result<_, _>>();
    Ok(Networks::of(
        nets.map_err(|invalid| ConfigError::at("", invalid))?,
    ))
}

fn read_file(path: &Path) -> Result<Networks, ConfigError> {
    let read = |entry: &str| parse_network(entry.trim());
    Ok(Networks::of(entries(path, read)?))
}

fn read_one(text: &str) -> Result<IpNet, InvalidValue> {
    parse_network(text.trim())
        .map_err(|expected| InvalidValue::new(format!("a network {text:?}"), expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    proptest! {
        #[test]
        fn an_address_is_listed_if_any_entry_contains_it(
            nets in prop::collection::vec((any::<u8>(), any::<u8>(), 0_u8..=32), 0..12),
            (a, b) in (any::<u8>(), any::<u8>()),
        ) {
            let nets: Vec<_> = nets
                .into_iter()
                .map(|(a, b, bits)| IpNet::new(IpAddr::from([10, a & 3, 0, b]), bits).expect("a net"))
                .collect();
            let list = AddressList::new(&nets).expect("a list");
            let address = Ipv4Addr::new(10, a & 3, 0, b);
            let expected = nets.iter().any(|net| net.contains(&IpAddr::V4(address)));
            prop_assert_eq!(list.contains(IpAddr::V4(address)), expected);
            prop_assert_eq!(list.contains(IpAddr::V6(address.to_ipv6_mapped())), expected);
        }
    }
}
