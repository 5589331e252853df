//! Cuts a stretch of time out of an MP4 file (ISO/IEC 14496-12): from the `moov` box of the whole a new one is made that
//! describes some of its samples, and where their bytes are in the file. Boxes are written in the order in which nginx's
//! `ngx_http_mp4_module` writes them; those that it leaves out (`udta`, edit lists) are left out here.

use std::fmt;

/// Tracks of one file.
const MAX_TRACKS: usize = 64;
/// Boxes inside one box.
const MAX_BOXES: usize = 4096;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Where it starts, ms.
    pub start: u64,
    /// How long it is, ms; to the end without.
    pub length: Option<u64>,
    /// Video starts with the key frame before, and players are told to skip what precedes the start.
    pub key_frame: bool,
}

/// What is known of the file around the `moov` box.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Bytes of the whole file.
    pub file: u64,
    /// Where the data of `mdat` end.
    pub mdat_end: u64,
    /// Bytes that are sent before the new `moov`: the `ftyp` box.
    pub before: u64,
}

/// A stretch of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The new `moov` box, and the head of `mdat`.
    pub head: Vec<u8>,
    /// Where the data begin in the file.
    pub from: u64,
    /// Where they end.
    pub to: u64,
}

/// Why a file cannot be cut so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(&'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

type Result<T> = std::result::Result<T, Refused>;

/// The head of a box: its name, how long the head is, and how long the box with it. `None`: the bytes end within the head.
pub fn box_head(bytes: &[u8]) -> Option<Result<([u8; 4], usize, u64)>> {
    let (size, name) = (be32(bytes, 0)?, *bytes.get(4..)?.first_chunk::<4>()?);
    let (head, size) = match size {
        1 => (16, be64(bytes, 8)?),
        size => (8, u64::from(size)),
    };
    // A size of zero: up to the end of what is around.
    Some(if size != 0 && size < head as u64 { Err(Refused("mp4 atom is too small")) } else { Ok((name, head, size)) })
}

/// Makes the description of a stretch. `moov` is what the box of that name holds.
pub fn cut(moov: &[u8], around: Around, wanted: Wanted) -> Result<Cut> {
    let boxes = boxes(moov)?;
    if find(&boxes, b"cmov")?.is_some() {
        return Err(Refused("mp4 compressed moov atom (cmov) is not supported"));
    }
    let mut out = Vec::with_capacity(moov.len() + 32);
    let (mut places, mut from, mut to) = (Vec::new(), around.file, 0);
    let start = open(&mut out, b"moov");
    let mut scale = 0;
    if let Some(mvhd) = find(&boxes, b"mvhd")? {
        let clock = Clock::read(mvhd, [12, 16], [20, 24], "mp4 mvhd atom too small")?;
        scale = clock.scale;
        let begin = ticks(wanted.start, scale)?;
        let duration = clock.duration.checked_sub(begin).ok_or(Refused("mp4 start time exceeds file duration"))?;
        let at = open(&mut out, b"mvhd");
        out.extend_from_slice(mvhd);
        clock.write(&mut out[at + 8..], shorter(duration, wanted, scale));
        close(&mut out, at);
    }
    let mut tracks = 0;
    for (_, trak) in boxes.iter().filter(|(name, _)| name == b"trak") {
        let Some(track) = Track::read(trak, scale, wanted)? else { continue };
        tracks += 1;
        if tracks > MAX_TRACKS {
            return Err(Refused("too many mp4 trak atoms"));
        }
        if let Some((first, end)) = track.write(&mut out, around, &mut places)? {
            from = from.min(first);
            to = to.max(end);
        }
    }
    close(&mut out, start);
    if tracks == 0 {
        return Err(Refused("no mp4 trak atoms were found"));
    }
    if to <= from {
        return Err(Refused("no data between start time and end time"));
    }
    if from >= around.mdat_end {
        return Err(Refused("start time is out mp4 mdat atom"));
    }
    let len = to - from;
    let head: u64 = if len > u64::from(u32::MAX) - 8 { 16 } else { 8 };
    let data = around.before + out.len() as u64 + head;
    for place in places {
        place.move_by(&mut out, data, from)?;
    }
    out.extend_from_slice(&if head == 16 { 1 } else { (len + 8) as u32 }.to_be_bytes());
    out.extend_from_slice(b"mdat");
    if head == 16 {
        out.extend_from_slice(&(len + 16).to_be_bytes());
    }
    Ok(Cut { head: out, from, to })
}

/// A table of offsets in the new `moov`, which are known when its length is.
struct Offsets {
    at: usize,
    count: usize,
    wide: bool,
}

impl Offsets {
    /// What was at `from` in the file is at `data` now.
    fn move_by(&self, out: &mut [u8], data: u64, from: u64) -> Result<()> {
        let width = if self.wide { 8 } else { 4 };
        for entry in out[self.at..self.at + self.count * width].chunks_exact_mut(width) {
            let old = if self.wide { be64(entry, 0) } else { be32(entry, 0).map(u64::from) }.unwrap_or(0);
            let new =
                old.checked_sub(from).and_then(|n| n.checked_add(data)).ok_or(Refused("too large chunk offset"))?;
            if self.wide {
                entry.copy_from_slice(&new.to_be_bytes());
            } else {
                let new = u32::try_from(new).map_err(|_| Refused("too large chunk offset"))?;
                entry.copy_from_slice(&new.to_be_bytes());
            }
        }
        Ok(())
    }
}

/// The scale and the duration in a head of a movie or of its media, in one of two widths.
struct Clock {
    scale: u32,
    duration: u64,
    at: usize,
    wide: bool,
}

impl Clock {
    /// `scale` and `duration` are the places (less the head of the box) in version 0; `wide` those of version 1.
    fn read(body: &[u8], narrow: [usize; 2], wide: [usize; 2], small: &'static str) -> Result<Clock> {
        let version = *body.first().ok_or(Refused(small))?;
        let [scale_at, at] = if version == 0 { narrow } else { wide };
        let scale = be32(body, scale_at).ok_or(Refused(small))?;
        let duration = if version == 0 { be32(body, at).map(u64::from) } else { be64(body, at) };
        Ok(Clock { scale, duration: duration.ok_or(Refused(small))?, at, wide: version != 0 })
    }

    fn write(&self, body: &mut [u8], duration: u64) {
        let width = if self.wide { 8 } else { 4 };
        let bytes = if self.wide { duration.to_be_bytes().to_vec() } else { (duration as u32).to_be_bytes().to_vec() };
        body[self.at..self.at + width].copy_from_slice(&bytes);
    }
}

/// The tables of a track.
struct Track<'m> {
    tkhd: Option<(&'m [u8], Clock, u64)>,
    mdhd: Option<(&'m [u8], Clock, u64)>,
    /// Copied: `hdlr`; and what `minf` and `stbl` hold before the tables.
    hdlr: Option<&'m [u8]>,
    minf: Vec<([u8; 4], &'m [u8])>,
    stsd: Option<&'m [u8]>,
    stts: Table<'m>,
    stss: Option<Table<'m>>,
    ctts: Option<Table<'m>>,
    stsc: Table<'m>,
    stsz: Option<Sizes<'m>>,
    offsets: Table<'m>,
    wide: bool,
    /// The first sample, from 0.
    first: u64,
    /// The one behind the last, where there is an end.
    end: Option<u64>,
    /// Media time between the first sample and the start.
    prefix: u64,
}

impl<'m> Track<'m> {
    /// `None`: the track ends before the start.
    fn read(trak: &'m [u8], movie_scale: u32, wanted: Wanted) -> Result<Option<Track<'m>>> {
        let inside = boxes(trak)?;
        let tkhd = match find(&inside, b"tkhd")? {
            Some(body) => {
                let clock = Clock::read(body, [0, 20], [0, 28], "mp4 tkhd atom too small")?;
                let Some(left) = left(&clock, wanted, movie_scale)? else { return Ok(None) };
                Some((body, clock, left))
            }
            None => None,
        };
        let mdia = boxes(find(&inside, b"mdia")?.unwrap_or_default())?;
        let mut scale = 0;
        let mdhd = match find(&mdia, b"mdhd")? {
            Some(body) => {
                let clock = Clock::read(body, [12, 16], [20, 24], "mp4 mdhd atom too small")?;
                scale = clock.scale;
                let Some(left) = left(&clock, wanted, scale)? else { return Ok(None) };
                Some((body, clock, left))
            }
            None => None,
        };
        let minf = boxes(find(&mdia, b"minf")?.unwrap_or_default())?;
        let stbl = boxes(find(&minf, b"stbl")?.unwrap_or_default())?;
        let table = |name: &[u8; 4], width, small| find(&stbl, name)?.map(|b| Table::read(b, width, small)).transpose();
        let need = |table: Option<Table<'m>>, missing| table.ok_or(Refused(missing));
        let (stco, co64) =
            (table(b"stco", 4, "mp4 stco atom too small")?, table(b"co64", 8, "mp4 co64 atom too small")?);
        if stco.is_some() && co64.is_some() {
            return Err(Refused("duplicate mp4 stco/co64 atom"));
        }
        let wide = co64.is_some();
        let mut track = Track {
            tkhd,
            mdhd,
            hdlr: find(&mdia, b"hdlr")?,
            minf: minf.iter().filter(|(n, _)| matches!(n, b"vmhd" | b"smhd" | b"dinf")).copied().collect(),
            stsd: find(&stbl, b"stsd")?,
            stts: need(table(b"stts", 8, "mp4 stts atom too small")?, "no mp4 stts atoms were found")?,
            stss: table(b"stss", 4, "mp4 stss atom too small")?,
            ctts: table(b"ctts", 8, "mp4 ctts atom too small")?,
            stsc: need(table(b"stsc", 12, "mp4 stsc atom too small")?, "no mp4 stsc atoms were found")?,
            stsz: find(&stbl, b"stsz")?.map(Sizes::read).transpose()?,
            offsets: need(co64.or(stco), "no mp4 stco atoms were found")?,
            wide,
            first: 0,
            end: None,
            prefix: 0,
        };
        track.choose(scale, wanted)?;
        Ok(Some(track))
    }

    /// Finds the samples between start and end.
    fn choose(&mut self, scale: u32, wanted: Wanted) -> Result<()> {
        let start = ticks(wanted.start, scale)?;
        self.first = self.sample_at(start).ok_or(Refused("start time is out mp4 stts samples"))?;
        if let Some(sync) = self.stss.as_ref().filter(|_| wanted.key_frame) {
            if sync.rows().any(|row| word(row, 0) == 0) {
                return Err(Refused("zero sync sample"));
            }
            let before = sync.rows().map(|row| u64::from(word(row, 0))).take_while(|n| *n <= self.first + 1).last();
            let begin = self.time_of(self.first);
            self.first = before.map_or(self.first, |n| n - 1);
            self.prefix = begin - self.time_of(self.first);
        }
        if let Some(length) = wanted.length {
            let time = self.time_of(self.first).saturating_add(at_most(length, scale)).saturating_add(self.prefix);
            let all = self.stts.rows().map(|row| u64::from(word(row, 0))).sum();
            self.end = Some(self.sample_at(time).unwrap_or(all));
        }
        Ok(())
    }

    /// The sample that is shown at a media time.
    fn sample_at(&self, mut time: u64) -> Option<u64> {
        let mut sample = 0;
        for row in self.stts.rows() {
            let (count, each) = (u64::from(word(row, 0)), u64::from(word(row, 1)));
            if time < count * each {
                return Some(sample + time / each);
            }
            time -= count * each;
            sample += count;
        }
        None
    }

    /// When a sample begins.
    fn time_of(&self, sample: u64) -> u64 {
        let (mut left, mut time) = (sample, 0u64);
        for row in self.stts.rows() {
            let count = u64::from(word(row, 0)).min(left);
            time = time.saturating_add(count * u64::from(word(row, 1)));
            left -= count;
        }
        time
    }

    /// Appends the track. Gives where its bytes begin and end in the file, if it has any.
    fn write(&self, out: &mut Vec<u8>, around: Around, places: &mut Vec<Offsets>) -> Result<Option<(u64, u64)>> {
        let chunks = self.chunks(around)?;
        let trak = open(out, b"trak");
        if let Some((body, clock, left)) = &self.tkhd {
            let at = copy(out, b"tkhd", body);
            clock.write(&mut out[at + 8..], *left);
            if self.prefix > 0 {
                self.write_edit(out, *left);
            }
        }
        let mdia = open(out, b"mdia");
        if let Some((body, clock, left)) = &self.mdhd {
            let at = copy(out, b"mdhd", body);
            clock.write(&mut out[at + 8..], left.saturating_add(self.prefix));
        }
        if let Some(body) = self.hdlr {
            copy(out, b"hdlr", body);
        }
        let minf = open(out, b"minf");
        for (name, body) in &self.minf {
            copy(out, name, body);
        }
        let stbl = open(out, b"stbl");
        if let Some(body) = self.stsd {
            copy(out, b"stsd", body);
        }
        self.write_runs(out, b"stts", &self.stts);
        if let Some(sync) = &self.stss {
            self.write_sync(out, sync);
        }
        if let Some(table) = self.ctts.as_ref().filter(|t| self.has_runs(t)) {
            self.write_runs(out, b"ctts", table);
        }
        chunks.write(self, out, places);
        for at in [stbl, minf, mdia, trak] {
            close(out, at);
        }
        Ok(chunks.span)
    }

    /// `edts`: players begin so far behind the first sample.
    fn write_edit(&self, out: &mut Vec<u8>, duration: u64) {
        let edts = open(out, b"edts");
        let elst = open(out, b"elst");
        out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
        out.extend_from_slice(&duration.to_be_bytes());
        out.extend_from_slice(&self.prefix.to_be_bytes());
        out.extend_from_slice(&[0, 1, 0, 0]);
        close(out, elst);
        close(out, edts);
    }

    /// The runs of a table (how many samples, and something of each) that are about samples of this stretch.
    fn runs<'t>(&self, table: &'t Table<'m>) -> impl Iterator<Item = (u64, u32)> + use<'t, 'm> {
        let (first, end, mut at) = (self.first, self.end.unwrap_or(u64::MAX), 0u64);
        table.rows().filter_map(move |row| {
            let start = at;
            at += u64::from(word(row, 0));
            let count = at.min(end).saturating_sub(start.max(first));
            (count > 0).then_some((count, word(row, 1)))
        })
    }

    fn has_runs(&self, table: &Table<'m>) -> bool {
        self.runs(table).next().is_some()
    }

    fn write_runs(&self, out: &mut Vec<u8>, name: &[u8; 4], table: &Table<'m>) {
        let at = table.open(out, name);
        let mut rows = 0u32;
        for (count, value) in self.runs(table) {
            out.extend_from_slice(&(count as u32).to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
            rows += 1;
        }
        close_table(out, at, rows);
    }

    /// `stss`: numbers of key frames, from 1.
    fn write_sync(&self, out: &mut Vec<u8>, sync: &Table<'m>) {
        let at = sync.open(out, b"stss");
        let end = self.end.unwrap_or(u64::MAX);
        let mut rows = 0u32;
        for number in sync.rows().map(|row| u64::from(word(row, 0))) {
            if number > self.first && number <= end {
                out.extend_from_slice(&((number - self.first) as u32).to_be_bytes());
                rows += 1;
            }
        }
        close_table(out, at, rows);
    }

    /// The chunk that a sample is in, the sample's number there, and the row of `stsc` about that chunk.
    fn chunk_of(&self, sample: u64, out_of: &'static str) -> Result<(u64, u64)> {
        let (mut left, total) = (sample, self.offsets.len() as u64);
        let mut rows = self.stsc.rows().peekable();
        while let Some(row) = rows.next() {
            let (chunk, samples) = (u64::from(word(row, 0)), u64::from(word(row, 1)));
            let next = rows.peek().map_or(total + 1, |row| u64::from(word(row, 0)));
            if chunk == 0 {
                return Err(Refused("zero chunk"));
            }
            if next < chunk {
                return Err(Refused("unordered mp4 stsc chunks"));
            }
            if left < (next - chunk).saturating_mul(samples) {
                return Ok((chunk - 1 + left / samples, left % samples));
            }
            left -= (next - chunk).saturating_mul(samples);
        }
        Err(Refused(out_of))
    }

    /// The chunks of this stretch.
    fn chunks(&self, around: Around) -> Result<Chunks> {
        let sizes = self.stsz.as_ref();
        if sizes.is_some_and(|s| self.first >= s.count) {
            return Err(Refused("start time is out mp4 stsz samples"));
        }
        let end = match (self.end, sizes) {
            (Some(end), Some(sizes)) if end > sizes.count => return Err(Refused("end time is out mp4 stsz samples")),
            (end, _) => end,
        };
        if end.is_some_and(|end| end <= self.first) {
            return Ok(Chunks { start: 0, skip: 0, end: 0, keep: None, span: None, first_offset: 0 });
        }
        let (start, skip) = self.chunk_of(self.first, "start time is out mp4 stsc chunks")?;
        let first_chunk = self.offset(start).ok_or(Refused("start time is out mp4 stco chunks"))?;
        let size = |from, to| sizes.map_or(0, |s| s.sum(from, to));
        let first_offset = first_chunk.saturating_add(size(self.first - skip, self.first));
        let (chunks, keep, data_end) = match end {
            None => (self.offsets.len() as u64, None, around.mdat_end),
            Some(end) => {
                let (last, at) = self.chunk_of(end - 1, "end time is out mp4 stsc chunks")?;
                let offset = self.offset(last).ok_or(Refused("end time is out mp4 stco chunks"))?;
                (last + 1, Some(at + 1), offset.saturating_add(size(end - 1 - at, end)))
            }
        };
        if first_offset > around.file || data_end > around.file {
            return Err(Refused("too large chunk offset"));
        }
        Ok(Chunks { start, skip, end: chunks, keep, span: Some((first_offset, data_end)), first_offset })
    }

    fn offset(&self, chunk: u64) -> Option<u64> {
        let row = self.offsets.row(usize::try_from(chunk).ok()?)?;
        if self.wide { be64(row, 0) } else { be32(row, 0).map(u64::from) }
    }
}

/// Which chunks of a track are sent.
struct Chunks {
    /// The first, from 0, and how many of its samples are left out.
    start: u64,
    skip: u64,
    /// The one behind the last, and how many samples the last keeps.
    end: u64,
    keep: Option<u64>,
    span: Option<(u64, u64)>,
    first_offset: u64,
}

impl Chunks {
    /// Appends `stsc`, `stsz` and the offsets.
    fn write(&self, track: &Track<'_>, out: &mut Vec<u8>, places: &mut Vec<Offsets>) {
        self.write_samples(track, out);
        if let Some(sizes) = &track.stsz {
            let end = if self.span.is_none() { track.first } else { track.end.unwrap_or(sizes.count) };
            sizes.write(out, track.first, end);
        }
        let width = if track.wide { 8 } else { 4 };
        let at = track.offsets.open(out, if track.wide { b"co64" } else { b"stco" });
        let table = out.len();
        let rows = track.offsets.bytes.get(self.start as usize * width..self.end as usize * width);
        let rows = rows.filter(|_| self.span.is_some()).unwrap_or_default();
        out.extend_from_slice(rows);
        if !rows.is_empty() {
            // Within 32 bits, or the offset behind it was not.
            let first = self.first_offset.to_be_bytes();
            out[table..table + width].copy_from_slice(&first[8 - width..]);
        }
        let count = rows.len() / width;
        places.push(Offsets { at: table, count, wide: track.wide });
        close_table(out, at, count as u32);
    }

    /// How many samples a chunk has left.
    fn samples(&self, chunk: u64, whole: u64) -> u64 {
        let kept = if chunk + 1 == self.end { self.keep.unwrap_or(whole) } else { whole };
        kept.saturating_sub(if chunk == self.start { self.skip } else { 0 })
    }

    /// `stsc`: from which chunk on each has so many samples of such a kind.
    fn write_samples(&self, track: &Track<'_>, out: &mut Vec<u8>) {
        let at = track.stsc.open(out, b"stsc");
        let (mut count, mut last) = (0u32, None);
        let mut put = |out: &mut Vec<u8>, chunk: u64, samples: u64, kind: u32| {
            if last != Some((samples, kind)) {
                last = Some((samples, kind));
                for value in [(chunk - self.start + 1) as u32, samples as u32, kind] {
                    out.extend_from_slice(&value.to_be_bytes());
                }
                count += 1;
            }
        };
        let mut rows = track.stsc.rows().filter(|_| self.span.is_some()).peekable();
        while let Some(row) = rows.next() {
            let (from, whole, kind) =
                (u64::from(word(row, 0)).saturating_sub(1), u64::from(word(row, 1)), word(row, 2));
            let to = rows.peek().map_or(self.end, |row| u64::from(word(row, 0)).saturating_sub(1)).min(self.end);
            let from = from.max(self.start);
            // All between the first and the last chunk of the stretch are alike.
            for chunk in [from, from + 1, to.saturating_sub(1)] {
                if (from..to).contains(&chunk) {
                    put(out, chunk, self.samples(chunk, whole), kind);
                }
            }
        }
        close_table(out, at, count);
    }
}

/// A table behind version, flags and the number of its rows.
struct Table<'m> {
    flags: [u8; 4],
    bytes: &'m [u8],
    width: usize,
}

impl<'m> Table<'m> {
    fn read(body: &'m [u8], width: usize, small: &'static str) -> Result<Table<'m>> {
        let (flags, count) = (body.first_chunk::<4>(), be32(body, 4));
        let (Some(flags), Some(count)) = (flags, count) else { return Err(Refused(small)) };
        let len = (count as usize).checked_mul(width).ok_or(Refused(small))?;
        let bytes = body.get(8..).and_then(|rest| rest.get(..len)).ok_or(Refused(small))?;
        Ok(Table { flags: *flags, bytes, width })
    }

    fn rows(&self) -> impl Iterator<Item = &'m [u8]> + use<'m> {
        self.bytes.chunks_exact(self.width)
    }

    fn row(&self, at: usize) -> Option<&'m [u8]> {
        self.bytes.chunks_exact(self.width).nth(at)
    }

    fn len(&self) -> usize {
        self.bytes.len() / self.width
    }

    /// Begins a table of the same kind.
    fn open(&self, out: &mut Vec<u8>, name: &[u8; 4]) -> usize {
        let at = open(out, name);
        out.extend_from_slice(&self.flags);
        out.extend_from_slice(&[0; 4]);
        at
    }
}

/// `stsz`: one size for all samples, or one for each.
struct Sizes<'m> {
    flags: [u8; 4],
    uniform: u32,
    count: u64,
    bytes: &'m [u8],
}

impl<'m> Sizes<'m> {
    fn read(body: &'m [u8]) -> Result<Sizes<'m>> {
        let small = Refused("mp4 stsz atom too small");
        let flags = *body.first_chunk::<4>().ok_or(small)?;
        let (uniform, count) = (be32(body, 4).ok_or(small)?, be32(body, 8).ok_or(small)?);
        let len = if uniform == 0 { count as usize * 4 } else { 0 };
        let bytes = body.get(12..).and_then(|rest| rest.get(..len)).ok_or(small)?;
        Ok(Sizes { flags, uniform, count: count.into(), bytes })
    }

    /// Bytes of the samples `from..to`, which are among those that there are.
    fn sum(&self, from: u64, to: u64) -> u64 {
        match self.uniform {
            0 => self.between(from, to).chunks_exact(4).map(|row| u64::from(word(row, 0))).sum(),
            size => u64::from(size).saturating_mul(to - from),
        }
    }

    fn between(&self, from: u64, to: u64) -> &'m [u8] {
        let range = (from as usize).saturating_mul(4)..(to as usize).saturating_mul(4).min(self.bytes.len());
        self.bytes.get(range).unwrap_or_default()
    }

    fn write(&self, out: &mut Vec<u8>, from: u64, to: u64) {
        let at = open(out, b"stsz");
        out.extend_from_slice(&self.flags);
        out.extend_from_slice(&self.uniform.to_be_bytes());
        out.extend_from_slice(&(to.saturating_sub(from) as u32).to_be_bytes());
        if self.uniform == 0 {
            out.extend_from_slice(self.between(from, to));
        }
        close(out, at);
    }
}

/// Milliseconds in units of a clock.
fn ticks(ms: u64, scale: u32) -> Result<u64> {
    u64::try_from(u128::from(ms) * u128::from(scale) / 1000)
        .map_err(|_| Refused("mp4 start time exceeds file duration"))
}

/// The same of how long a stretch is to be: an end beyond what can be counted is behind the film's.
fn at_most(ms: u64, scale: u32) -> u64 {
    ticks(ms, scale).unwrap_or(u64::MAX)
}

fn shorter(duration: u64, wanted: Wanted, scale: u32) -> u64 {
    wanted.length.map_or(duration, |length| duration.min(at_most(length, scale)))
}

/// What is left of a duration; `None`: nothing.
fn left(clock: &Clock, wanted: Wanted, scale: u32) -> Result<Option<u64>> {
    let start = ticks(wanted.start, scale)?;
    Ok(clock.duration.checked_sub(start).filter(|n| *n > 0).map(|n| shorter(n, wanted, scale)))
}

/// The boxes inside another.
fn boxes(mut bytes: &[u8]) -> Result<Vec<([u8; 4], &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (name, head, size) = box_head(bytes).ok_or(Refused("mp4 file truncated"))??;
        if size == 0 {
            break;
        }
        let size = usize::try_from(size).ok().filter(|n| *n <= bytes.len()).ok_or(Refused("mp4 atom too large"))?;
        if found.len() == MAX_BOXES {
            return Err(Refused("too many mp4 atoms"));
        }
        found.push((name, &bytes[head..size]));
        bytes = &bytes[size..];
    }
    Ok(found)
}

/// The box of a name, of which there may be one.
fn find<'m>(boxes: &[([u8; 4], &'m [u8])], name: &[u8; 4]) -> Result<Option<&'m [u8]>> {
    let mut named = boxes.iter().filter(|(n, _)| n == name);
    let first = named.next().map(|(_, body)| *body);
    if named.next().is_some() { Err(Refused("duplicate mp4 atom")) } else { Ok(first) }
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A number of a row, which is long enough.
fn word(row: &[u8], number: usize) -> u32 {
    be32(row, number * 4).unwrap_or(0)
}

/// Begins a box; [`close`] writes its size.
fn open(out: &mut Vec<u8>, name: &[u8; 4]) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    at
}

fn close(out: &mut [u8], at: usize) {
    let size = (out.len() - at) as u32;
    out[at..at + 4].copy_from_slice(&size.to_be_bytes());
}

fn close_table(out: &mut [u8], at: usize, rows: u32) {
    out[at + 12..at + 16].copy_from_slice(&rows.to_be_bytes());
    close(out, at);
}

fn copy(out: &mut Vec<u8>, name: &[u8; 4], body: &[u8]) -> usize {
    let at = open(out, name);
    out.extend_from_slice(body);
    close(out, at);
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        copy(&mut out, name, body);
        out
    }

    fn table(name: &[u8; 4], rows: &[&[u32]]) -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend_from_slice(&(rows.len() as u32).to_be_bytes());
        for value in rows.iter().copied().flatten() {
            body.extend_from_slice(&value.to_be_bytes());
        }
        boxed(name, &body)
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_be_bytes()).collect()
    }

    /// Ten samples of 100 ms, of 1 to 10 bytes, in chunks of 4, 4 and 2 from offset 1000 on; key frames are 1 and 6.
    fn movie() -> Vec<u8> {
        let sizes: Vec<u32> = (1..=10).collect();
        let stbl = [
            table(b"stts", &[&[4, 100], &[6, 100]]),
            table(b"stss", &[&[1], &[6]]),
            table(b"ctts", &[&[10, 7]]),
            table(b"stsc", &[&[1, 4, 1], &[3, 2, 1]]),
            boxed(b"stsz", &[words(&[0, 0, 10]), words(&sizes)].concat()),
            table(b"stco", &[&[1000], &[1010], &[1036]]),
        ];
        let minf = boxed(b"minf", &boxed(b"stbl", &stbl.concat()));
        let mdhd = boxed(b"mdhd", &words(&[0, 0, 0, 1000, 1000, 0]));
        let tkhd = boxed(b"tkhd", &words(&[0, 0, 0, 1, 0, 1000, 0, 0]));
        let trak = boxed(b"trak", &[tkhd, boxed(b"mdia", &[mdhd, minf].concat())].concat());
        [boxed(b"mvhd", &words(&[0, 0, 0, 1000, 1000, 0])), trak].concat()
    }

    const AROUND: Around = Around { file: 1055, mdat_end: 1055, before: 20 };

    fn wanted(start: u64, length: Option<u64>) -> Wanted {
        Wanted { start, length, key_frame: false }
    }

    /// The rows of a table in what was made.
    fn rows(cut: &Cut, name: &[u8; 4]) -> Vec<u32> {
        let at = cut.head.windows(4).position(|w| w == name).expect("it is there");
        let size = be32(&cut.head, at - 4).expect("it has a size") as usize;
        cut.head[at + 12..at - 4 + size].chunks_exact(4).map(|w| word(w, 0)).collect()
    }

    #[test]
    fn samples_from_the_middle_to_the_end() {
        let cut = cut(&movie(), AROUND, wanted(450, None)).expect("it can be cut");
        assert_eq!((cut.from, cut.to), (1010, 1055));
        assert_eq!(rows(&cut, b"stts"), [6, 100]);
        assert_eq!(rows(&cut, b"stss"), [2]);
        assert_eq!(rows(&cut, b"ctts"), [6, 7]);
        assert_eq!(rows(&cut, b"stsc"), [1, 4, 1, 2, 2, 1]);
        assert_eq!(rows(&cut, b"stsz"), [6, 5, 6, 7, 8, 9, 10]);
        let data = 20 + cut.head.len() as u32;
        assert_eq!(rows(&cut, b"stco"), [data, data + 26]);
        assert_eq!(&cut.head[cut.head.len() - 8..], &words(&[53, u32::from_be_bytes(*b"mdat")]));
    }

    #[test]
    fn parts_of_chunks_at_both_ends() {
        let cut = cut(&movie(), AROUND, wanted(100, Some(800))).expect("it can be cut");
        // Samples 2 to 9: three of the first chunk, all of the second, one of the third.
        assert_eq!((cut.from, cut.to), (1001, 1045));
        assert_eq!(rows(&cut, b"stts"), [3, 100, 5, 100]);
        assert_eq!(rows(&cut, b"stsc"), [1, 3, 1, 2, 4, 1, 3, 1, 1]);
        let data = 20 + cut.head.len() as u32;
        assert_eq!(rows(&cut, b"stco"), [data, data + 9, data + 35]);
        let one = super::cut(&movie(), AROUND, wanted(500, Some(200))).expect("it can be cut");
        assert_eq!((one.from, one.to), (1015, 1028));
        assert_eq!((rows(&one, b"stsc"), rows(&one, b"stsz")), (vec![1, 2, 1], vec![2, 6, 7]));
    }

    #[test]
    fn the_key_frame_before() {
        let wanted = Wanted { start: 750, length: Some(100), key_frame: true };
        let cut = cut(&movie(), AROUND, wanted).expect("it can be cut");
        // Sample 8 is shown at 750 ms, sample 6 is the key frame before: 200 ms to skip.
        assert_eq!(rows(&cut, b"stsz"), [3, 6, 7, 8]);
        assert_eq!(rows(&cut, b"elst"), [0, 100, 0, 200, 1 << 16]);
        assert_eq!(rows(&cut, b"stss"), [1]);
    }

    #[test]
    fn what_cannot_be_cut() {
        let says = |moov: &[u8], wanted| cut(moov, AROUND, wanted).expect_err("it is wrong").to_string();
        assert_eq!(says(&movie(), wanted(2000, None)), "mp4 start time exceeds file duration");
        assert_eq!(says(&movie(), wanted(1000, None)), "no mp4 trak atoms were found");
        assert_eq!(says(&movie(), wanted(0, Some(50))), "no data between start time and end time");
        assert_eq!(says(&movie()[..100], wanted(0, None)), "mp4 atom too large");
        assert_eq!(says(b"", wanted(0, None)), "no mp4 trak atoms were found");
        assert_eq!(says(&[0, 0, 0, 4, 0, 0, 0, 0], wanted(0, None)), "mp4 atom is too small");
    }

    /// Whatever a byte is changed to, there is an answer, and what is sent is in the file.
    #[test]
    fn bytes_that_are_wrong() {
        let whole = movie();
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut moov = whole.clone();
                moov[at] = value;
                for wanted in [wanted(450, None), Wanted { start: 350, length: Some(300), key_frame: true }] {
                    if let Ok(cut) = cut(&moov, AROUND, wanted) {
                        assert!(cut.from < cut.to && cut.to <= AROUND.file);
                    }
                }
            }
        }
    }
}
