//! `--link PROPERTY=VALUE,...`: an emulated link, in one argument of the command line.

use std::fmt;
use std::time::Duration;

use fordway_command::units::{parse_bit_rate, parse_duration};

use super::netlab::percent;

const FORM: &str = "write properties with their values, such as rtt=5ms,rate=1gbit; the properties are rtt, rate, loss \
                    and congestion";

/// The properties of a link, as on the command line of `netlab`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LinkArg {
    /// The round-trip time; zero for no added delay.
    pub(crate) rtt: Duration,
    /// The rate in each direction, bits per second; `None` for no limit.
    pub(crate) rate_bits_per_s: Option<u64>,
    /// The share of packets that are lost in each direction, from 0 to 1.
    pub(crate) loss: f64,
    /// TCP's congestion-control algorithm; `None` for the kernel's default.
    pub(crate) congestion: Option<String>,
}

impl LinkArg {
    /// Parses the properties. Errors are messages that clap prints.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut link = LinkArg::default();
        let mut known: Vec<&str> = Vec::new();
        for property in text.split(',') {
            let (name, value) = property.trim().split_once('=').ok_or_else(|| FORM.to_owned())?;
            if known.contains(&name) {
                return Err(format!("{name} is given twice"));
            }
            known.push(name);
            link.set(name, value)?;
        }
        Ok(link)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "rtt" => self.rtt = parse_duration(value)?,
            "rate" => self.rate_bits_per_s = Some(parse_bit_rate(value)?),
            "loss" => self.loss = percent(value)?,
            "congestion" if !value.is_empty() => self.congestion = Some(value.to_owned()),
            _ => return Err(FORM.to_owned()),
        }
        Ok(())
    }
}

/// Formats the properties that differ from the defaults, in the form that [`LinkArg::parse`] reads. Equal links produce
/// equal strings.
impl fmt::Display for LinkArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rtt = (!self.rtt.is_zero()).then(|| format!("rtt={:?}", self.rtt));
        let rate = self.rate_bits_per_s.map(|rate| match rate {
            rate if rate % 1_000_000_000 == 0 => format!("rate={}gbit", rate / 1_000_000_000),
            rate if rate % 1_000_000 == 0 => format!("rate={}mbit", rate / 1_000_000),
            rate => format!("rate={}kbit", rate / 1_000),
        });
        let loss = (self.loss > 0.0).then(|| format!("loss={}%", self.loss * 100.0));
        let congestion = self.congestion.as_ref().map(|name| format!("congestion={name}"));
        let all: Vec<String> = [rtt, rate, loss, congestion].into_iter().flatten().collect();
        f.write_str(if all.is_empty() { "no limits" } else { "" })?;
        f.write_str(&all.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_come_in_any_order() {
        let link = LinkArg::parse("rate=1Gbit,rtt=5ms").unwrap();
        assert_eq!((link.rtt, link.rate_bits_per_s), (Duration::from_millis(5), Some(1_000_000_000)));
        let link = LinkArg::parse("loss=0.1%, congestion=reno").unwrap();
        assert_eq!((link.loss, link.congestion.as_deref()), (0.001, Some("reno")));
        assert_eq!((link.rtt, link.rate_bits_per_s), (Duration::ZERO, None));
    }

    #[test]
    fn equal_links_have_equal_texts() {
        for (text, shown) in [
            ("rate=1000mbit,rtt=5ms", "rtt=5ms,rate=1gbit"),
            ("rate=1500kbit", "rate=1500kbit"),
            ("loss=0.1%,congestion=reno,rate=10Mbit", "rate=10mbit,loss=0.1%,congestion=reno"),
            ("rtt=0s", "no limits"),
        ] {
            assert_eq!(LinkArg::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_link_is_refused_in_a_sentence() {
        for (text, says) in [
            ("", "rtt=5ms"),
            ("5ms", "rtt=5ms"),
            ("rtt=5", "5"),
            ("rtt=5ms,rtt=6ms", "twice"),
            ("rate=fast", "not a rate"),
            ("loss=200", "percentage"),
            ("delay=5ms", "the properties are"),
            ("congestion=", "the properties are"),
        ] {
            let refused = LinkArg::parse(text).expect_err(text);
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
