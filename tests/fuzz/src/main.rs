//! `netams-fuzz-seeds FOLDER` writes, for each target, its seeds to `FOLDER/TARGET/seeds/` and the words in them that are
//! worth trying elsewhere to `FOLDER/TARGET/words`, a dictionary of libFuzzer.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs, io, process};

use netams_fuzz::{TARGETS, Target};

/// Words of fewer letters are found without help.
const SHORTEST: usize = 3;

fn main() {
    let Some(folder) = env::args_os().nth(1) else {
        eprintln!("Usage: netams-fuzz-seeds FOLDER");
        process::exit(64);
    };
    for target in &TARGETS {
        if let Err(e) = write(target, &Path::new(&folder).join(target.name)) {
            eprintln!("netams-fuzz-seeds: {}: {e}", target.name);
            process::exit(74);
        }
    }
}

fn write(target: &Target, folder: &Path) -> io::Result<()> {
    let inputs = (target.seeds)();
    let seeds = folder.join("seeds");
    fs::create_dir_all(&seeds)?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(seeds.join(number.to_string()), input)?;
    }
    let texts = inputs.iter().filter_map(|input| str::from_utf8(input).ok());
    let words: BTreeSet<&str> = texts.flat_map(words).collect();
    let dictionary: String = words.iter().map(|word| format!("\"{word}\"\n")).collect();
    fs::write(folder.join("words"), dictionary)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.len() >= SHORTEST)
}
