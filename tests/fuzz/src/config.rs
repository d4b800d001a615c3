//! [`netamsd::config`]: any text in the place of the configuration.

use std::net::IpAddr;

use netamsd::config::{Config, ConfigError};
use netamsd::policy::{UnitId, Units};

/// The annotated sample.
const SAMPLE: &str = include_str!("../../../netamsd/netams.toml");

/// The sample, the sample with its examples, and the least that is taken.
pub fn seeds() -> Vec<Vec<u8>> {
    let example = |line: &str| line.starts_with('#') && !line.starts_with("# ");
    let lines = SAMPLE.lines().map(|line| if example(line) { &line[1..] } else { line });
    let with_examples: String = lines.clone().flat_map(|line| [line, "\n"]).collect();
    let without_comments = lines.filter(|line| !line.starts_with("# "));
    let short: String = without_comments.flat_map(|line| [line, "\n"]).collect();
    vec![SAMPLE.into(), with_examples.into(), short.into(), b"kernel.interfaces = []\n".to_vec()]
}

/// Either a configuration that is valid and charges what its units say, or one sentence about a place in the text.
pub fn check(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    match Config::parse(text) {
        Ok(config) => {
            assert_eq!(config.validate(), Ok(()));
            charges(&config);
        }
        Err(error) => refusal(text, &error),
    }
}

/// The first address of each prefix belongs to its unit.
fn charges(config: &Config) {
    let units = Units::new(&config.units);
    for (id, unit) in (0..).map(UnitId).zip(&config.units) {
        for net in &unit.addresses {
            let first = match net.network() {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            for scope in unit.scopes() {
                assert!(units.of(scope, first).contains(&id), "{net} is not charged to {}", unit.name);
            }
        }
    }
}

fn refusal(text: &str, error: &ConfigError) {
    let sentence = error.to_string();
    assert!(!sentence.contains(char::is_control), "control characters: {sentence:?}");
    let Some(at) = error.position else { return };
    let line = text.split('\n').nth(at.line - 1).expect("a line of the text");
    assert!((1..=line.chars().count() + 1).contains(&at.column), "{at:?}: {sentence}");
}
