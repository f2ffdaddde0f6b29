//! One run of a target, which fails where it panics or holds too much memory; libFuzzer sees to time.

#[path = "../../tests/fuzz/counting.rs"]
mod counting;
#[path = "../../tests/fuzz/targets.rs"]
mod targets;

pub fn run(name: &str, data: &[u8]) {
    let (_, target, factor) = targets::TARGETS.iter().find(|(known, ..)| *known == name).expect("a target");
    let most = counting::most(|| target(data));
    assert!(most <= factor * data.len() + targets::SLACK, "{name}: {most} bytes held for {}", data.len());
}
