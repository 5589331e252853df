//! What a process of another version has pinned. Its links are kept, since packets go by its program until ours is in that one's place;
//! its maps are not, since ours would read other words in them. Before: a process starts where pins are. After: maps are pinned, links taken over.

use crate::kernel::{chain, said};
use aya::maps::{Map, MapData, MapInfo};
use aya::{Ebpf, EbpfLoader};
use std::path::{Path, PathBuf};

/// What tells a map of one layout from that of another: type, bytes of a key and of a value, flags.
type Shape = (Option<aya::maps::MapType>, u32, u32, u32);

fn shape(info: &MapInfo) -> Shape {
    (info.map_type().ok(), info.key_size(), info.value_size(), info.map_flags())
}

fn shape_of(map: &Map) -> Option<Shape> {
    let data: &MapData = match map {
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data) => {
            data
        }
        _ => return None,
    };
    data.info().ok().as_ref().map(shape)
}

/// Folders of other versions beside ours: `v` and a number.
pub(crate) fn folders(pins: &Path, ours: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(pins) else { return Vec::new() };
    let is_version = |name: &str| {
        name.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let all = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(is_version)).map(|e| e.path());
    all.filter(|path| path != ours).collect()
}

/// Moves links of other versions into our folder, and lets go of their maps. The answer: names of those versions.
pub(crate) fn gather(pins: &Path, ours: &Path, is_link: impl Fn(&str) -> bool) -> Result<Vec<String>, String> {
    let mut versions = Vec::new();
    for folder in folders(pins, ours) {
        for entry in std::fs::read_dir(&folder).map_err(|e| said(&folder, &e))?.flatten() {
            let (from, to) = (entry.path(), ours.join(entry.file_name()));
            let keep = entry.file_name().to_str().is_some_and(&is_link) && !to.exists();
            let done = if keep { std::fs::rename(&from, &to) } else { std::fs::remove_file(&from) };
            done.map_err(|e| said(&from, &e))?;
        }
        std::fs::remove_dir(&folder).map_err(|e| said(&folder, &e))?;
        versions.extend(folder.file_name().map(|name| name.to_string_lossy().into_owned()));
    }
    Ok(versions)
}

/// Lets go of the maps in our folder if one of them has not the shape that `object` gives it: each names what is in the others. The answer: which.
pub(crate) fn forget_misshapen(ours: &Path, object: &[u8], names: &[&'static str]) -> Result<Option<String>, String> {
    let pinned = names.iter().filter_map(|name| Some((*name, MapInfo::from_pin(ours.join(name)).ok()?)));
    let pinned: Vec<_> = pinned.collect();
    if pinned.is_empty() {
        return Ok(None);
    }
    let sample = sample(object, names)?;
    let differs = |(name, info): &&(&str, MapInfo)| sample.map(name).and_then(shape_of) != Some(shape(info));
    let Some((name, _)) = pinned.iter().find(differs) else { return Ok(None) };
    for (name, _) in &pinned {
        let pin = ours.join(name);
        std::fs::remove_file(&pin).map_err(|e| said(&pin, &e))?;
    }
    Ok(Some((*name).to_owned()))
}

/// The object's maps as small as can be, to be looked at.
fn sample(object: &[u8], names: &[&'static str]) -> Result<Ebpf, String> {
    let mut loader = EbpfLoader::new();
    // A ring's size is one of pages; it is small.
    names.iter().filter(|name| **name != "resets").for_each(|name| {
        loader.map_max_entries(name, 1);
    });
    loader.load(object).map_err(|e| format!("cannot load the program's maps: {}", chain(&e)))
}
