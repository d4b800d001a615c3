//! The Rust structs of the ABI are the C structs of the compiled objects, field by field.

use std::collections::HashMap;

use kmod_bpf::*;
use object::{Object, ObjectSection};

/// Fields of a C struct: name, offset and size in bytes.
type Fields = Vec<(String, usize, usize)>;

/// A `.BTF` section, as laid out in the kernel's `include/uapi/linux/btf.h`.
struct Btf<'a> {
    types: Vec<(u32, u32, u32, &'a [u8])>, // name offset, info, size or type, what follows
    strings: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl<'a> Btf<'a> {
    fn parse(section: &'a [u8]) -> Self {
        let header = word(section, 4) as usize;
        let part = |at: usize| {
            let start = header + word(section, at) as usize;
            &section[start..start + word(section, at + 4) as usize]
        };
        let (mut rest, strings) = (part(8), part(16));
        let mut types = vec![(0, 0, 0, &section[..0])]; // type 0 is void
        while !rest.is_empty() {
            let info = word(rest, 4);
            let count = (info & 0xffff) as usize;
            let follows = match info >> 24 & 0x1f {
                1 | 14 | 17 => 4,              // int, var, decl_tag
                3 => 12,                       // array
                4 | 5 | 15 | 19 => count * 12, // struct, union, datasec, enum64
                6 | 13 => count * 8,           // enum, func_proto
                _ => 0,
            };
            types.push((word(rest, 0), info, word(rest, 8), &rest[12..12 + follows]));
            rest = &rest[12 + follows..];
        }
        Self { types, strings }
    }

    fn name(&self, offset: u32) -> String {
        let bytes = &self.strings[offset as usize..];
        String::from_utf8(bytes.iter().copied().take_while(|b| *b != 0).collect()).expect("a name")
    }

    fn size(&self, id: u32) -> usize {
        let (_, info, size, follows) = self.types[id as usize];
        match info >> 24 & 0x1f {
            3 => self.size(word(follows, 0)) * word(follows, 8) as usize,
            8..=11 | 18 => self.size(size), // typedef, volatile, const, restrict, type_tag
            _ => size as usize,
        }
    }

    fn structs(&self) -> HashMap<String, (usize, Fields)> {
        let of_kind = self.types.iter().filter(|(_, info, ..)| info >> 24 & 0x1f == 4);
        of_kind
            .map(|(name, _, size, follows)| {
                let fields = follows
                    .chunks(12)
                    .map(|m| (self.name(word(m, 0)), word(m, 8) as usize / 8, self.size(word(m, 4))))
                    .collect();
                (self.name(*name), (*size as usize, fields))
            })
            .collect()
    }
}

#[test]
fn rust_and_c_agree_on_every_field() {
    let mut structs = HashMap::new();
    for object in [OBJECT, ANSWER_OBJECT] {
        let file = object::File::parse(object).unwrap();
        let section = file.section_by_name(".BTF").unwrap();
        structs.extend(Btf::parse(section.data().unwrap()).structs());
    }
    type Layout = &'static [(&'static str, usize, usize)];
    let expected: [(&str, usize, Layout); 16] = [
        ("flow_key", size_of::<FlowKey>(), FlowKey::FIELDS),
        ("flow_slot", size_of::<FlowSlot>(), FlowSlot::FIELDS),
        ("flow_set", size_of::<FlowSet>(), FlowSet::FIELDS),
        ("spill_value", size_of::<SpillValue>(), SpillValue::FIELDS),
        ("fragment_key", size_of::<FragmentKey>(), FragmentKey::FIELDS),
        ("overflow_cell", size_of::<OverflowCell>(), OverflowCell::FIELDS),
        ("prefix_key", size_of::<PrefixKey>(), PrefixKey::FIELDS),
        ("counters", size_of::<Counters>(), Counters::FIELDS),
        ("control", size_of::<Control>(), Control::FIELDS),
        ("unit_rules", size_of::<UnitRules>(), UnitRules::FIELDS),
        ("rule", size_of::<Rule>(), Rule::FIELDS),
        ("quota_rule", size_of::<QuotaRule>(), QuotaRule::FIELDS),
        ("quota_room", size_of::<QuotaRoom>(), QuotaRoom::FIELDS),
        ("quota_use", size_of::<QuotaUse>(), QuotaUse::FIELDS),
        ("list_key", size_of::<ListKey>(), ListKey::FIELDS),
        ("answer", size_of::<Answer>(), Answer::FIELDS),
    ];
    for (name, size, fields) in expected {
        let (c_size, c_fields) =
            structs.get(name).unwrap_or_else(|| panic!("no struct {name} in the object"));
        assert_eq!(*c_size, size, "size of {name}");
        let fields: Fields = fields.iter().map(|(n, o, s)| ((*n).to_owned(), *o, *s)).collect();
        assert_eq!(*c_fields, fields, "fields of {name}");
    }
}

#[test]
fn the_object_has_the_named_programs_maps_and_constants() {
    use object::ObjectSymbol;
    let file = object::File::parse(OBJECT).unwrap();
    let symbols: Vec<String> = file.symbols().filter_map(|s| s.name().ok().map(str::to_owned)).collect();
    let constants = [
        constant::CPUS,
        constant::SETS,
        constant::CLASSES,
        constant::MARK,
        constant::MARK_OTHER,
        constant::SEED,
    ];
    for name in program::ALL.iter().chain([&program::CLOCK]).chain(&map::ALL).chain(&constants) {
        assert!(symbols.iter().any(|s| s == name), "no symbol {name}");
    }
    assert!(program::ALL.iter().all(|p| p.starts_with(program::PREFIX)));
}
