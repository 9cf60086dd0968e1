// Random numbers that depend on nothing but where they are used: Philox4x32-10 (Salmon, Moraes,
// Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).

struct Draw {
    uint64_t seed;
    uint32_t step;
    uint32_t stream;
    uint32_t slot;  // tells apart the tensors of one parameter
};

constexpr int64_t lanes = ZINF_OPTIM_BLOCK / 8;  // a counter makes 128 bits, 16 for each element

// Fills in 16 bits for each element of one block.  Element j uses the counter j % lanes and its
// half word j / lanes, so that neighbours are computed side by side.
static void draw(const Draw& what, uint64_t block, uint32_t* __restrict random) {
    uint32_t words[4][lanes];
    for (int64_t i = 0; i < lanes; ++i) {
        words[0][i] = static_cast<uint32_t>(block) * static_cast<uint32_t>(lanes) +
                      static_cast<uint32_t>(i);
        words[1][i] = static_cast<uint32_t>(block >> 27) << 2 | what.slot;
        words[2][i] = what.stream;
        words[3][i] = what.step;
    }
    uint32_t key0 = static_cast<uint32_t>(what.seed), key1 = static_cast<uint32_t>(what.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (int64_t i = 0; i < lanes; ++i) {
            const uint64_t product0 = uint64_t{0xD2511F53u} * words[0][i];
            const uint64_t product1 = uint64_t{0xCD9E8D57u} * words[2][i];
            words[0][i] = static_cast<uint32_t>(product1 >> 32) ^ words[1][i] ^ key0;
            words[2][i] = static_cast<uint32_t>(product0 >> 32) ^ words[3][i] ^ key1;
            words[1][i] = static_cast<uint32_t>(product1);
            words[3][i] = static_cast<uint32_t>(product0);
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    for (int64_t word = 0; word < 4; ++word) {
        for (int64_t i = 0; i < lanes; ++i) {
            random[2 * word * lanes + i] = words[word][i] & 0xffffu;
            random[(2 * word + 1) * lanes + i] = words[word][i] >> 16;
        }
    }
}
