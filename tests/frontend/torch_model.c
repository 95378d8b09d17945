/* torch_model.c - reads models that tests/gradients/torch_*.py write, with what PyTorch says as
 * outputs NAME.grad (of the state NAME) and NAME.want (of the output NAME); the interpreter must
 * say the same in double (known.h). */
#include "torch_model.h"
#include "import_helpers.h"
#include "known.h"

static const double tolerance = 1e-6;

void torch_model_values(const char *path, uint32_t least) {
    Arena *arena = arena_new();
    Model m = import_good((ImportOptions){.path = path, DIMS({"batch", 1})});
    Known k = {m.graph, arena};
    cr_assert_geq(known_results(&k, tolerance), least);
    model_free(&m);
    arena_free(arena);
}

void torch_model_gradients(const char *path, uint32_t least) {
    Arena *arena = arena_new();
    Model m = import_good((ImportOptions){.path = path, DIMS({"batch", 1})});
    cr_assert_geq(known_gradients(m.graph, arena, tolerance), least);
    model_free(&m);
    arena_free(arena);
}
