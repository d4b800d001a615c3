//! The checks, given inputs that are known: seeds, and those of `regressions/TARGET/`.

use std::fs;
use std::path::Path;

use netams_fuzz::TARGETS;

#[test]
fn seeds_pass() {
    for target in &TARGETS {
        let seeds = (target.seeds)();
        assert!(seeds.len() > 3, "{} has {} seeds", target.name, seeds.len());
        for (number, seed) in seeds.iter().enumerate() {
            println!("{}, seed {number}", target.name);
            (target.check)(seed);
        }
    }
}

#[test]
fn inputs_that_failed_once_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for entry in fs::read_dir(&folder).unwrap() {
        let folder = entry.unwrap().path();
        let target = TARGETS.iter().find(|target| folder.ends_with(target.name)).unwrap();
        for input in fs::read_dir(&folder).unwrap() {
            let input = input.unwrap().path();
            println!("{}", input.display());
            (target.check)(&fs::read(&input).unwrap());
        }
    }
}
