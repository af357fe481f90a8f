//! Where a request goes: scheme, host and port of an address, read as the HTTP client reads it.
//!
//! Invariant: two addresses have the same [`Origin`] only if the same server answers both, whatever they look like
//! (`http://trusted@elsewhere`, `127.0.0.1.elsewhere`, `0x7f.1`).

use reqwest::Url;
use std::fmt;
use std::net::IpAddr;

/// The origin of an `http` or `https` address (RFC 6454). `Display` gives it without user, password, path and query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    text: String,
    local: bool,
    encrypted: bool,
}

impl Origin {
    /// `None` when `address` is no `http` or `https` address with a host.
    pub fn of(address: &str) -> Option<Origin> {
        let url = Url::parse(address.trim()).ok()?;
        let host = url.host_str().filter(|h| !h.is_empty())?;
        let encrypted = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        Some(Origin { text: url.origin().ascii_serialization(), local: is_local(host), encrypted })
    }

    /// On this machine: what is sent there passes no network.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// Nobody between here and there can read along.
    pub fn is_private(&self) -> bool {
        self.encrypted || self.local
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `host` as a parsed address gives it: IPv4 in dotted decimals, IPv6 in brackets, names in lower case.
fn is_local(host: &str) -> bool {
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_unspecified(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unspecified() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
        // Other names under `.localhost` are asked of a name server by some systems.
        Err(_) => host.trim_end_matches('.') == "localhost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_look_alike_are_told_apart() {
        let same = |a: &str, b: &str| Origin::of(a).unwrap() == Origin::of(b).unwrap();
        assert!(same("https://Api.Example.com/v1", "https://api.example.com:443/other?x=1"));
        for (a, b) in [
            ("https://good.example/v1", "http://good.example/v1"),
            ("https://good.example/v1", "https://good.example:8443/v1"),
            ("https://good.example/v1", "https://good.example@evil.example/v1"),
            ("https://good.example/v1", "https://good.example.evil.example/v1"),
            ("http://127.0.0.1/v1", "http://127.0.0.1.evil.example/v1"),
        ] {
            assert!(!same(a, b), "{a} {b}");
        }
        assert_eq!(Origin::of("http://me:secret@h:8000/v1?api-key=x").unwrap().to_string(), "http://h:8000");
        for none in ["", "localhost:8000/v1", "https:", "file:///etc/passwd", "ftp://h/", "http://"] {
            assert_eq!(Origin::of(none), None, "{none}");
        }
    }

    #[test]
    fn local_is_this_machine_alone() {
        for here in [
            "http://localhost:1/v1",
            "http://LOCALHOST./v1",
            "http://127.8.9.1/v1",
            "http://0x7f.1/",
            "http://[::1]:8/v1",
            "http://0.0.0.0:8000",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert!(Origin::of(here).unwrap().is_local(), "{here}");
        }
        for there in
            ["http://127.0.0.1.evil.example/", "http://localhost.evil.example/", "http://10.0.0.1/", "http://gpu/"]
        {
            let o = Origin::of(there).unwrap();
            assert!(!o.is_local() && !o.is_private(), "{there}");
        }
        assert!(Origin::of("https://gpu/").unwrap().is_private());
    }
}
