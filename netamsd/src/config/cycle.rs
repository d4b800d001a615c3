//! Names that refer to each other in a circle: groups, and policies.

use std::collections::HashSet;

/// A way from one of `names` back to a name on it, which is first and last; `parts` are those that a name refers to.
pub(super) fn find<'a>(
    names: impl IntoIterator<Item = &'a str>,
    parts: impl Fn(&'a str) -> Vec<&'a str>,
) -> Option<Vec<&'a str>> {
    let mut done = HashSet::new();
    names.into_iter().find_map(|name| from(name, &parts, &mut Vec::new(), &mut done))
}

/// Depth-first; `path` is the way from the start to here, `done` what is known to lead to no cycle.
fn from<'a>(
    name: &'a str,
    parts: &impl Fn(&'a str) -> Vec<&'a str>,
    path: &mut Vec<&'a str>,
    done: &mut HashSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if done.contains(name) {
        return None;
    }
    if let Some(first) = path.iter().position(|known| *known == name) {
        return Some(path[first..].iter().copied().chain([name]).collect());
    }
    path.push(name);
    let cycle = parts(name).into_iter().find_map(|part| from(part, parts, path, done));
    path.pop();
    done.insert(name);
    cycle
}
