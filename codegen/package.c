/* package.c - what an application needs beside the library: the header, a pkg-config file, a CMake
 * package file.
 *
 * The pkg-config and CMake files find the folder they lie in by themselves, so a step folder can be
 * moved as a whole. */
#include "step_table.h"

void package_header(Text *out, const CodegenOptions *o) {
    text_printf(out,
                "/* %s.h - the training step that trainc compiled; open it with trainc_open "
                "(trainc.h). */\n"
                "#ifndef %s_STEP_H\n#define %s_STEP_H\n#include \"trainc.h\"\n#ifdef "
                "__cplusplus\nextern \"C\" {\n#endif\n"
                "#if defined(__GNUC__)\n__attribute__((visibility(\"default\")))\n#endif\n"
                "const trainc_program *%s_program(void);\n#ifdef __cplusplus\n}\n#endif\n#endif\n",
                o->name, o->name, o->name, o->name);
}

static const char *folder_of(const char *path, Arena *arena) {
    size_t n = 0;
    for (size_t i = 0; path[i]; i++)
        if (path[i] == '/') n = i;
    return arena_printf(arena, "%.*s", (int)n, path);
}

void package_pkg_config(Text *out, const CodegenOptions *o) {
    text_printf(out,
                "folder=${pcfiledir}\nruntime=%s\n\nName: %s\nDescription: Training step of %s, "
                "compiled by trainc\nVersion: 0.1.0\n"
                "Libs: ${folder}/lib%s.a ${runtime}/libtrainc_runtime.a -fopenmp -lm -lpthread "
                "-ldl\nCflags: -I${folder} -I%s\n",
                folder_of(o->runtime_lib, out->arena), o->name, o->name, o->name,
                o->runtime_include);
}

void package_cmake(Text *out, const CodegenOptions *o) {
    text_printf(out,
                "# find_package(%s CONFIG PATHS this-folder) gives the target %s::%s\n"
                "if(NOT TARGET %s::%s)\n"
                "  add_library(%s::%s STATIC IMPORTED)\n"
                "  set_target_properties(%s::%s PROPERTIES IMPORTED_LOCATION "
                "\"${CMAKE_CURRENT_LIST_DIR}/lib%s.a\"\n"
                "    INTERFACE_INCLUDE_DIRECTORIES \"${CMAKE_CURRENT_LIST_DIR};%s\"\n"
                "    INTERFACE_LINK_LIBRARIES \"%s;-fopenmp;m;pthread;${CMAKE_DL_LIBS}\")\n"
                "endif()\n",
                o->name, o->name, o->name, o->name, o->name, o->name, o->name, o->name, o->name,
                o->name, o->runtime_include, o->runtime_lib);
}
