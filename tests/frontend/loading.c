/* Tests that weights stay in their files, as (file, offset, bytes), and that damaged files are
 * refused in words. */
#include "import_helpers.h"
#include "onnx_wire.h"
#include <unistd.h>

static void read_at(const WeightSource *s, void *to) {
    FILE *f = fopen(s->file, "rb");
    cr_assert(f && fseek(f, (long)s->offset, SEEK_SET) == 0 &&
              fread(to, 1, s->bytes, f) == s->bytes);
    fclose(f);
}

Test(loading, raw_weights_are_places_in_the_file_and_typed_ones_are_decoded) {
    float w[12], b[3];
    Model m = import_good((ImportOptions){.path = MODEL("tiny"), DIMS({"batch", 2})});
    const State *weight = graph_state(m.graph, "w"), *bias = graph_state(m.graph, "b");
    cr_assert(weight->source.file && weight->source.bytes == sizeof w && weight->trains);
    read_at(&weight->source, w);
    for (int i = 0; i < 12; i++) cr_assert_eq(w[i], (float)i);
    cr_assert(!bias->source.file && bias->source.bytes == sizeof b);
    memcpy(b, bias->source.data, sizeof b);
    cr_assert(b[0] == 1 && b[1] == 2 && b[2] == 3);
    cr_assert(!graph_state(m.graph, "shape"));
    model_free(&m);
}

Test(loading, external_weights_are_places_in_the_data_file) {
    float v[4];
    Model m = import_good((ImportOptions){.path = MODEL("external"), DIMS({"batch", 2})});
    const WeightSource *s = &graph_state(m.graph, "v")->source;
    cr_assert(strstr(s->file, "/models/weights.bin") && s->offset == 16);
    read_at(s, v);
    cr_assert(v[0] == 4 && v[3] == 7);
    model_free(&m);
}

Test(loading, every_missing_data_file_is_named) {
    import_bad((ImportOptions){.path = MODEL("external_missing"), DIMS({"batch", 2})}, 4,
               STRINGS("E_WEIGHTS_READ", "absent1.bin", "absent2.bin"));
}

Test(loading, short_data_and_wrong_lengths_are_refused) {
    import_bad((ImportOptions){.path = MODEL("external_short"), DIMS({"batch", 2})}, 4,
               STRINGS("w: too short", "v: its dims need 16 bytes"));
}

Test(loading, data_outside_the_models_folder_is_refused) {
    import_bad((ImportOptions){.path = MODEL("external_escape"), DIMS({"batch", 2})}, 4,
               STRINGS("../weights.bin", "/etc/hostname"));
}

Test(loading, a_file_that_is_not_there_is_refused) {
    import_bad((ImportOptions){.path = "absent.onnx"}, 4,
               STRINGS("E_MODEL_READ", "absent.onnx", "No such file"));
}

static size_t read_file(const char *path, char *bytes, size_t cap) {
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, cap, f);
    fclose(f);
    return n;
}

static void write_file(const char *path, const char *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    cr_assert(fwrite(bytes, 1, n, f) == n);
    fclose(f);
}

/* Whatever is left of a file, or whichever byte of it is wrong: no crash, and a refusal comes with
 * a diagnostic. */
static void import_damaged(const char *path) {
    Model m;
    ImportOptions o = {.path = path, DIMS({"batch", 2})};
    bool is_imported = model_import(&o, &m);
    cr_assert_eq(is_imported, !diag_has_errors(m.graph));
    model_free(&m);
    onnx_tensors list;
    char *error = NULL;
    onnx_wire_model(path, &list, &error);
    onnx_wire_free(&list);
    free(error);
}

static void damage(const char *model) {
    char bytes[4096], path[] = "/tmp/trainc-test-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    size_t n = read_file(model, bytes, sizeof bytes);
    for (size_t i = 0; i < n; i++) {
        write_file(path, bytes, i);
        import_damaged(path);
        char kept = bytes[i];
        for (int flip = 1; flip < 256; flip = flip * 5 + 1) {
            bytes[i] = (char)(kept ^ flip);
            write_file(path, bytes, n);
            import_damaged(path);
        }
        bytes[i] = kept;
    }
    unlink(path);
}

Test(loading, truncated_and_damaged_files_never_crash) {
    damage(MODEL("tiny"));
    damage(MODEL("inlining"));
    damage(MODEL("fold"));
}

/* ---------------------------------------------------------------- export */

static const void *ones_for_v(void *user, const char *name, uint64_t bytes) {
    (void)bytes;
    return strcmp(name, "v") ? NULL : user;
}

Test(loading, export_replaces_one_initializer_and_keeps_the_rest) {
    float ones[4] = {1, 1, 1, 1}, got[8];
    char out[] = "/tmp/trainc-test-XXXXXX", data[64], *error = NULL;
    close(mkstemp(out));
    snprintf(data, sizeof data, "%s.data", out);
    cr_assert_eq(onnx_wire_export(MODEL("external"), out, ones_for_v, ones, NULL, 0, &error),
                 TRAINC_OK);
    Model m = import_good((ImportOptions){.path = out, DIMS({"batch", 2})});
    read_at(&graph_state(m.graph, "w")->source, got);
    read_at(&graph_state(m.graph, "v")->source, got + 4);
    for (int i = 0; i < 8; i++) cr_assert_eq(got[i], i < 4 ? (float)i : 1.0f);
    model_free(&m);
    unlink(out);
    unlink(data);
}

Test(loading, export_without_replacement_is_the_same_file) {
    char out[] = "/tmp/trainc-test-XXXXXX", *error = NULL, before[4096], after[4096];
    close(mkstemp(out));
    cr_assert_eq(onnx_wire_export(MODEL("tiny"), out, ones_for_v, NULL, NULL, 0, &error),
                 TRAINC_OK);
    size_t n = read_file(MODEL("tiny"), before, sizeof before);
    cr_assert_eq(read_file(out, after, sizeof after), n);
    cr_assert_arr_eq(after, before, n);
    unlink(out);
}
